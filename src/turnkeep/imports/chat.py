"""Chats in files: OpenAI's messages as JSON or JSON Lines, and ShareGPT's. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from turnkeep import jsontext
from turnkeep.errors import InvalidInputError, TransferError
from turnkeep.imports.turns import Foreign
from turnkeep.transfer import MAX_LINE_BYTES, Record

_IDS = ("id", "conversation_id", "session_id", "uuid")
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
_MOST_ID = 500


def openai_chat(stream: BinaryIO, name: str) -> Iterator[Foreign]:
    """Chats with `messages`: one object, an array of them, one a line; or one bare list of messages."""
    for where, value in _values(stream, name):
        chat = {"messages": value} if isinstance(value, list) else value
        messages = chat.get("messages") if isinstance(chat, dict) else None
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise TransferError(f"{where}: no chat with a list of messages")
        yield _foreign("openai-chat", chat, messages, where)


def sharegpt(stream: BinaryIO, name: str) -> Iterator[Foreign]:
    """Conversations of `from` and `value`, as `role` and `content`: what else a message has stays with it."""
    for where, value in _values(stream, name):
        found = value.get("conversations", value.get("conversation")) if isinstance(value, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise TransferError(f"{where}: no conversation with a list of from and value")
        messages = [_message(one, f"{where}, message {index}") for index, one in enumerate(found)]
        if isinstance(value.get("system"), str) and value["system"]:
            messages.insert(0, {"role": "system", "content": value["system"]})
        yield _foreign("sharegpt", value, messages, where)


def _message(one: Record, where: str) -> Record:
    source = one.get("from", one.get("role"))
    role = _ROLES.get(source) if isinstance(source, str) else None
    if role is None:
        raise TransferError(f"{where}: nobody knows who {str(source)[:50]!r} is")
    rest = {key: value for key, value in one.items() if key not in ("from", "value", "role", "content")}
    message = {"role": role, "content": one.get("value", one.get("content"))}
    if source == "function_call":
        rest["sharegpt_from"] = source
    return {**message, **rest}


def _foreign(kind: str, chat: Record, messages: list[Record], where: str) -> Foreign:
    try:
        text = jsontext.encode(messages, where, max_bytes=MAX_LINE_BYTES)
    except InvalidInputError as error:
        raise TransferError(f"{where}: {error}") from error
    own = next((str(chat[key]) for key in _IDS if isinstance(chat.get(key), str | int) and str(chat[key])), "")
    if not own or len(own) > _MOST_ID or not _storable(own):
        own = hashlib.sha256(text.encode()).hexdigest()[:32]
    title = chat.get("title")
    kept = title[:1000] if isinstance(title, str) and title and _storable(title) else None
    return Foreign(f"{kind}:{own}", messages, title=kept)


def _storable(text: str) -> bool:
    """Whether a column of text can hold it: a title or an id that it can't is left out."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _values(stream: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """The chats of a file, each with where it stands: of a line each, or of an array."""
    lines = _lines(stream, name)
    first = next(lines, None)
    if first is None:
        raise TransferError(f"{name} is empty")
    try:
        value = json.loads(first)
        one_a_line = not isinstance(value, list) or not value or (isinstance(value[0], dict) and "role" in value[0])
    except ValueError:
        one_a_line = False
    except RecursionError:
        raise TransferError(f"{name}: nested too deep") from None
    if one_a_line:
        yield f"{name}, line 1", value
        for number, line in enumerate(lines, 2):
            if line.strip():
                yield f"{name}, line {number}", _parsed(line, f"{name}, line {number}")
        return
    whole = _parsed(first + b"".join(lines), name)
    is_array = isinstance(whole, list) and not (whole and isinstance(whole[0], dict) and "role" in whole[0])
    for number, value in enumerate(whole if is_array else [whole]):
        yield (f"{name}, element {number}" if is_array else name), value


def _lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise TransferError(f"{name}: a line is longer than {MAX_LINE_BYTES} bytes")
        yield line


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TransferError(f"{where}: no JSON ({error})") from None
