"""The agents that a command line names, loaded from people's own modules."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnkeep.errors import ConfigurationError, InvalidInputError, TurnkeepError

if TYPE_CHECKING:
    from turnkeep.runner import Agent

_MOST_PLACES = 3
_NOT_THEIRS = ("<", str(Path(__file__).parent.parent), str(Path(importlib.__file__).parent))


def load(references: Sequence[str]) -> list[Agent]:
    """The agents of each `module:attribute`, in order, one that is named twice once.

    Raises `ConfigurationError` for whatever keeps them from being used, such as an error in a module or a package that
    is not installed.
    """
    from turnkeep.runner.loading import load_agents
    from turnkeep.runner.models import ModelClient

    found: dict[int, Agent] = {}
    for reference in references:
        try:
            agents = load_agents(reference)
        except ConfigurationError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"{reference!r} can't be loaded: {_in_words(error)}") from error
        for agent in agents:
            found[id(agent)] = agent
            ModelClient(agent)  # which says now what would keep it from being asked later
    return list(found.values())


def load_hook(reference: str) -> Callable[[Any], Any]:
    """The redaction hook that `module:attribute` names."""
    from turnkeep.runner.loading import load_attribute

    try:
        found: Callable[[Any], Any] = load_attribute(reference, "redact")
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{reference!r} can't be loaded: {_in_words(error)}") from error
    if not callable(found):
        raise ConfigurationError(f"{reference!r} is no function: --redact names one as module:attribute")
    return found


def choose(agents: Sequence[Agent], name: str | None, reference: str) -> Agent:
    """The one agent that is meant."""
    fitting = [agent for agent in agents if name in (None, agent.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(repr(agent.name) for agent in agents)
    if not fitting:
        raise InvalidInputError(f"--agent: {reference!r} has no agent {name!r}, but {names}")
    raise InvalidInputError(f"{reference!r} has several agents: choose one of {names} with --agent")


def _in_words(error: BaseException) -> str:
    """What a module raised, and the lines that led there."""
    kind = "" if isinstance(error, TurnkeepError) else f"{type(error).__name__}: "
    if isinstance(error, SyntaxError):
        return f"{kind}{error}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)] or frames[-1:]
    places = [f"{frame.filename}:{frame.lineno}" for frame in theirs[:_MOST_PLACES]]
    return f"{kind}{error}, at {' → '.join(places)}"
