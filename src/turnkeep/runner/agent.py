"""An agent: a model, instructions and tools under a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkeep.errors import InvalidInputError
from turnkeep.model import check_text
from turnkeep.runner.tools import Tool

_MAX_NAME_CHARACTERS = 255


@dataclass(frozen=True)
class Agent:
    """Who answers in a conversation.

    `name` is the `agent_id` of the conversations it serves. `model` and `base_url` name a model on an
    OpenAI-compatible server; without `base_url` and `api_key` the environment's OPENAI_BASE_URL and OPENAI_API_KEY
    count. `instructions` come first in every request. `max_steps` is the most inferences of one turn. `options` go to
    the server with every request (`temperature`, `max_tokens`, `extra_body`, …). `timeout` is the seconds of silence
    after which a server counts as gone.
    """

    name: str
    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    instructions: str | None = None
    tools: Sequence[Tool] = ()
    max_steps: int = 20
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        check_text(self.name, "name", _MAX_NAME_CHARACTERS)
        check_text(self.model, "model", _MAX_NAME_CHARACTERS)
        if isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise InvalidInputError(f"max_steps: expected a number from 1, got {self.max_steps!r}")
        names = set()
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise InvalidInputError(f"tools: {tool!r} is no tool: put @turnkeep.tool before its function")
            if tool.name in names:
                raise InvalidInputError(f"tools: two of them are called {tool.name!r}")
            names.add(tool.name)

    def tool(self, name: str) -> Tool | None:
        """The tool of that name."""
        return next((tool for tool in self.tools if tool.name == name), None)
