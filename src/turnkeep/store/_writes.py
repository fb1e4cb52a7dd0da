"""What a write sends: values become exact text before anything else happens (G3)."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnkeep import jsontext
from turnkeep.errors import InvalidInputError, UnreadableError, UnstorableError
from turnkeep.jsontext import RawJSON


class Unchanged(enum.Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"


# A list travels as one value, and Postgres takes none of 1 GiB.
MAX_LIST_CHARACTERS: Final = 200 * 1024 * 1024

UNCHANGED: Final = Unchanged.UNCHANGED
"""Stands for a state that goes on as the previous checkpoint has it."""

Message = Mapping[str, Any] | RawJSON
"""A message: any JSON object, as a dict or as its exact text."""


@dataclass(frozen=True)
class Content:
    """The content of a write as JSON text, and the embedding of a turn that ends, if its writer has one."""

    messages: list[str]
    tool_calls: str | None
    tool_results: str | None
    state: str | None
    embedding: list[float] | None = None
    model: str | None = None

    @property
    def messages_text(self) -> str | None:
        """The messages as the database takes them: an array, or the only one itself."""
        if len(self.messages) == 1:
            return self.messages[0]
        return f"[{','.join(self.messages)}]" if self.messages else None


def content(
    messages: Sequence[Message],
    tool_calls: Sequence[object] | None,
    tool_results: Sequence[object] | None,
    state: object,
    *,
    whole: bool = False,
) -> Content:
    """Encode what a write holds, or raise `InvalidInputError` naming the culprit.

    With `whole` the messages are a whole list, of which only what is new will be sent.
    """
    _check_list(messages, "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) and not (isinstance(message, RawJSON) and message.text.startswith("{")):
            raise InvalidInputError(f"messages[{index}]: a message is a JSON object, not {type(message).__name__}")
    return Content(
        messages=_encoded(messages, "messages") if whole else _texts(messages, "messages"),
        tool_calls=_list_text(tool_calls, "tool_calls"),
        tool_results=_list_text(tool_results, "tool_results"),
        state=None if state is UNCHANGED else jsontext.encode(state, "state"),
    )


def readable_text(value: object, name: str) -> str:
    """The text of a value that is read with its branch: one that Python can't hold would make both unreadable."""
    text = jsontext.encode(value, name)
    try:
        jsontext.decode(text, name)
    except UnreadableError as error:
        raise UnstorableError(error.path, error.reason) from None
    return text


def _list_text(values: Sequence[object] | None, name: str) -> str | None:
    if values is None:
        return None
    _check_list(values, name)
    return f"[{','.join(_texts(values, name))}]" if values else None


def _texts(values: Sequence[object], name: str) -> list[str]:
    return checked(_encoded(values, name), name)


def _encoded(values: Sequence[object], name: str) -> list[str]:
    return [jsontext.encode(value, f"{name}[{index}]") for index, value in enumerate(values)]


def checked(texts: list[str], name: str) -> list[str]:
    """Return the texts of a list, if one statement can take them."""
    characters = sum(map(len, texts))
    if characters > MAX_LIST_CHARACTERS:
        raise UnstorableError(
            name, f"{characters} characters in one write; at most {MAX_LIST_CHARACTERS}: save it in several sub-steps"
        )
    return texts


def _check_list(values: object, name: str) -> None:
    if not isinstance(values, list | tuple):
        raise InvalidInputError(f"{name}: expected a list, got {type(values).__name__}")


def check_write_id(write_id: object) -> uuid.UUID | None:
    """Return a caller's write id, or None for one of our own making."""
    if write_id is not None and not isinstance(write_id, uuid.UUID):
        raise InvalidInputError(f"write_id: expected a uuid.UUID, got {type(write_id).__name__}")
    return write_id
