"""Threads that LangGraph's Postgres saver keeps: the newest messages of each, and the rest of its state.

What was serialised is read as plain data. Pickles, which could run anything, are never opened, and said.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from turnkeep import jsontext
from turnkeep.errors import InvalidInputError, TransferError
from turnkeep.imports.msgpack import Object, unpack
from turnkeep.imports.turns import NO_TIME, Foreign
from turnkeep.store import ForeignTables
from turnkeep.transfer import Record

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "developer": "developer",
}
_KNOWN = ("content", "type", "id", "name", "tool_calls", "tool_call_id", "role")
_MESSAGES = "messages"

Say = Callable[[str], None]


def langgraph(tables: ForeignTables, say: Say) -> Iterator[Foreign]:
    """The threads of a database, each namespace a conversation of its own below its thread's."""
    start = {"after": "", "namespace": "\x01"}  # no thread has an empty id
    for thread, namespace, began in tables.rows("threads", start, keys=("after", "namespace")):
        yield _Thread(tables, thread, namespace, say).read(began)


class _Thread:
    def __init__(self, tables: ForeignTables, thread: str, namespace: str, say: Say) -> None:
        self._tables = tables
        self._place = {"thread": thread, "namespace": namespace}
        self._name = f"thread {thread!r}" + (f", namespace {namespace!r}" if namespace else "")
        self._say = say

    def read(self, began: str | None) -> Foreign:
        """The thread as it stands at its newest checkpoint."""
        ((_, text, count, writes),) = self._tables.rows("newest", self._place)
        checkpoint = json.loads(text)
        values = self._values(checkpoint)
        found = values.pop(_MESSAGES, [])
        messages = [self._message(one) for one in (found if isinstance(found, list) else [])]
        if count > 1:
            self._say(
                f"{self._name}: {count - 1} earlier checkpoints were left out; the newest one's messages are there"
            )
        if writes:
            self._say(f"{self._name}: {writes} writes behind its newest checkpoint were left out")
        thread, namespace = self._place["thread"], self._place["namespace"]
        newest = _moment(checkpoint.get("ts"))
        return Foreign(
            f"langgraph:{thread}" + (f":{namespace}" if namespace else ""),
            messages,
            created_at=_moment(began),
            turns_at=newest,
            state=_plain(values, 0) if values else None,
            parent=f"langgraph:{thread}" if namespace else None,
        )

    def _values(self, checkpoint: Record) -> Record:
        values = dict(checkpoint.get("channel_values") or {})
        for channel, version in (checkpoint.get("channel_versions") or {}).items():
            if channel in values or channel.startswith(("__", "branch:")):
                continue
            asked = {**self._place, "channel": channel, "version": str(version)}
            for kind, blob in self._tables.rows("blob", asked):
                try:
                    value = self._value(channel, kind, bytes(blob) if blob is not None else b"")
                except (ValueError, RecursionError) as error:
                    raise TransferError(f"{self._name}: channel {channel!r} can't be read: {error}") from error
                if value is not _NOTHING:
                    values[channel] = value
        return {name: value for name, value in values.items() if not name.startswith(("__", "branch:"))}

    def _value(self, channel: str, kind: str, blob: bytes) -> Any:
        match kind:
            case "msgpack":
                return unpack(blob)
            case "json":
                return json.loads(blob)
            case "bytes" | "bytearray":
                return blob
            case "null":
                return None
            case "empty":
                return _NOTHING
        self._say(f"{self._name}: channel {channel!r} is of kind {kind!r}, which is never opened: it was left out")
        return _NOTHING

    def _message(self, one: Any) -> Record:
        fields = one.content if isinstance(one, Object) else one
        if isinstance(fields, dict) and isinstance(fields.get("kwargs"), dict) and "lc" in fields:  # the older JSON
            fields = {**fields["kwargs"]}
        if not isinstance(fields, dict):
            return {"role": "user", "content": _plain(one, 0)}
        role = _ROLES.get(str(fields.get("type")), fields.get("role"))
        message: Record = {
            "role": role if isinstance(role, str) else "user",
            "content": _plain(fields.get("content"), 0),
        }
        if fields.get("name"):
            message["name"] = _plain(fields["name"], 0)
        if calls := fields.get("tool_calls"):
            message["tool_calls"] = [_call(call) for call in calls if isinstance(call, dict)]
        if fields.get("tool_call_id") is not None:
            message["tool_call_id"] = str(fields["tool_call_id"])
        rest = {
            key: _plain(value, 0) for key, value in fields.items() if key not in _KNOWN and value not in (None, {}, [])
        }
        if fields.get("id"):
            rest["id"] = str(fields["id"])
        if rest:
            message["metadata"] = {"langchain": rest}
        return message


_NOTHING = object()


def _call(call: Record) -> Record:
    arguments = call.get("args")
    text = arguments if isinstance(arguments, str) else _text(_plain(arguments or {}, 0))
    return {
        "id": str(call.get("id")),
        "type": "function",
        "function": {"name": str(call.get("name")), "arguments": text},
    }


def _plain(value: Any, depth: int) -> Any:
    """A value as JSON can have it: bytes as base64, objects by their class and what they were made of."""
    if depth > jsontext.MAX_DEPTH - 10:
        return "nested too deep"
    if isinstance(value, Object):
        if value.name in ("UUID", "datetime", "date", "Decimal") and isinstance(value.content, str):
            return value.content
        return {"class": f"{value.module}.{value.name}", "value": _plain(value.content, depth + 1)}
    if isinstance(value, dict):
        return {str(key): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


def _text(value: Any) -> str:
    try:
        return jsontext.encode(value, "args")
    except InvalidInputError as error:
        raise TransferError(str(error)) from error


def _moment(text: Any) -> datetime:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return NO_TIME
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
