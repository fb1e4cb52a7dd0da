"""Agents named on a command line: `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from turnkeep.errors import ConfigurationError
from turnkeep.runner.agent import Agent


def load_agents(reference: str) -> list[Agent]:
    """Import the agent, or the list of them, that `module:attribute` names; the current directory counts.

    Without an attribute, `agent` is meant. Raises `ConfigurationError` where there is none; what the module raises
    itself passes through.
    """
    found = load_attribute(reference, "agent")
    agents = [one for one in (found if isinstance(found, list | tuple) else [found]) if isinstance(one, Agent)]
    if not agents or (isinstance(found, list | tuple) and len(agents) != len(found)):
        module_name, _, attribute = reference.partition(":")
        module = sys.modules[module_name]
        others = [key for key, value in vars(module).items() if isinstance(value, Agent)]
        there = f"; there is {', '.join(others)}" if others else ""
        name = attribute or "agent"
        raise ConfigurationError(f"{reference!r}: {module_name}.{name} is no turnkeep.Agent, nor a list of them{there}")
    return agents


def load_attribute(reference: str, default: str) -> Any:
    """Import what `module:attribute` names, or None where the module has nothing of that name."""
    module_name, _, attribute = reference.partition(":")
    name = attribute or default
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ConfigurationError(
            f"{reference!r}: name an agent as module:attribute, such as app:agent (and not app.py)"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"{reference!r}: there is no module {module_name!r} here; name it as module:attribute, such as app:agent "
            "(and not app.py)"
        ) from error
    return getattr(module, name, None)
