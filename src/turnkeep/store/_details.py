"""What is said of a conversation beside its content, checked before it is sent."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from turnkeep import jsontext
from turnkeep.errors import InvalidInputError, UnstorableError
from turnkeep.model import check_text
from turnkeep.store._writes import UNCHANGED

_MAX_NAME_CHARACTERS = 255
_MAX_TITLE_CHARACTERS = 1000
_MAX_TAGS = 100
_MAX_METADATA_BYTES = 65_536
_LONGEST_TTL = timedelta(days=365_000)


def check_name(text: object, name: str) -> str:
    """Return the name of an agent, a branch or a tenant."""
    return check_text(text, name, _MAX_NAME_CHARACTERS)


def check_branch_name(name: object) -> str:
    """Return the name of a new branch, if it can be told from a branch's number and from a place."""
    text = check_name(name, "name")
    if text.isdigit() or any(character in text for character in ":@"):
        raise InvalidInputError(
            f"name: {text!r} could be taken for a branch's number or a place: no ':' or '@', and not digits alone"
        )
    return text


def check_title(title: object) -> str | None:
    """Return a title, or None for none."""
    return None if title is None else check_text(title, "title", _MAX_TITLE_CHARACTERS)


def check_tags(tags: object) -> list[str]:
    """Return tags, each once, in the order given."""
    if not isinstance(tags, list | tuple | set | frozenset):
        raise InvalidInputError(f"tags: expected a list of texts, got {type(tags).__name__}")
    unique = list(dict.fromkeys(check_name(tag, f"tags[{index}]") for index, tag in enumerate(tags)))
    if len(unique) > _MAX_TAGS:
        raise InvalidInputError(f"tags: {len(unique)} of them; at most {_MAX_TAGS} are allowed")
    return unique


def metadata_text(metadata: object) -> str:
    """The text of metadata, if `jsonb` can hold it: people filter by them."""
    if not isinstance(metadata, dict):
        raise InvalidInputError(f"metadata: expected a JSON object as a dict, got {type(metadata).__name__}")
    text = jsontext.encode(metadata, "metadata", max_bytes=_MAX_METADATA_BYTES)
    _check_texts(metadata, "metadata")
    return text


def _check_texts(value: Any, path: str) -> None:
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= character <= "\udfff" for character in value)):
        raise UnstorableError(path, "NUL or a lone surrogate, which metadata can't hold")
    if isinstance(value, jsontext.RawJSON):
        raise UnstorableError(path, "raw JSON text: metadata are values")
    if isinstance(value, dict):
        for key, member in value.items():
            _check_texts(key, path)
            _check_texts(member, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, element in enumerate(value):
            _check_texts(element, f"{path}[{index}]")


def check_ttl(ttl: object, name: str = "ttl") -> timedelta | None:
    """Return how long a conversation is kept, or None for no time of its own."""
    if ttl is not None and not isinstance(ttl, timedelta):
        raise InvalidInputError(f"{name}: expected a timedelta or None, got {type(ttl).__name__}")
    if ttl is not None and not timedelta(0) < ttl <= _LONGEST_TTL:
        raise InvalidInputError(f"{name}: {ttl}; more than nothing and at most {_LONGEST_TTL.days} days are allowed")
    return ttl


def changes(title: object, tags: object, metadata: object, ttl: object) -> dict[str, Any]:
    """The parameters of an update: which details change, and to what."""
    given = {"title": title, "tags": tags, "metadata": metadata, "ttl": ttl}
    names = [name for name, value in given.items() if value is not UNCHANGED]
    if not names:
        raise InvalidInputError("nothing to update: give a title, tags, metadata or a ttl")
    return {
        "names": names,
        "title": check_title(title) if "title" in names else None,
        "tags": check_tags(tags) if "tags" in names else None,
        "metadata": metadata_text(metadata) if "metadata" in names else None,
        "ttl": check_ttl(ttl) if "ttl" in names else None,
        "update_id": uuid.uuid4(),
    }


def check_statuses(status: str | Sequence[str] | None) -> list[str] | None:
    """Return statuses to filter by, or None for any."""
    if status is None:
        return None
    known = ("idle", "open", "ready", "running", "waiting", "failed", "ended")
    statuses = [status] if isinstance(status, str) else [*status]
    for one in statuses:
        if one not in known:
            raise InvalidInputError(f"status: {one!r} is none of {', '.join(known)}")
    return statuses
