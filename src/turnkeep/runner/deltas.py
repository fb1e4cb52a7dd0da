"""From a stream's deltas to a model's whole reply: pure."""

from __future__ import annotations

import json
from typing import Any, Final

from turnkeep import jsontext
from turnkeep.errors import UnreadableError
from turnkeep.runner.effects import Json, ModelReply, ToolCall

_ABANDONED: Final = frozenset({"abort", "error"})  # what servers call a reply that they gave up
_WHOLE: Final = frozenset({"role", "type", "id", "name", "format", "status", "call_id", "tool_call_id"})


class ModelUnavailableError(Exception):
    """The model server gave no whole reply this time: why, and the seconds it wants to be left alone, if it said so.

    `status` is that of HTTP, if there was one; `begun` says whether a part of the reply had come.
    """

    def __init__(self, reason: str, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(reason, retry_after, status)
        self.reason = reason
        self.retry_after = retry_after
        self.status = status
        self.begun = False

    def __str__(self) -> str:
        return self.reason


class ReplyBuilder:
    """Puts a reply together from the chunks of its stream.

    Strings are joined, objects merged, elements of lists merged by their `index`, which goes; null erases nothing.
    What names or classifies is not text in pieces: servers that repeat it in each chunk don't double it.
    """

    def __init__(self) -> None:
        self.begun = False
        self.finish_reason: str | None = None
        self._message: Json = {}
        self._usage: Json | None = None

    def add(self, chunk: Json) -> list[str]:
        """Take the next chunk. Returns the pieces of text that it brought."""
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                return self._add(choice)
        return []

    def _add(self, choice: Json) -> list[str]:
        if isinstance(reason := choice.get("finish_reason"), str):
            self.finish_reason = reason
        if isinstance(delta := choice.get("delta"), dict):
            try:
                _merge_object(self._message, delta)
            except RecursionError:
                raise ModelUnavailableError("the stream is broken: it is nested too deep") from None
        elif isinstance(delta := choice.get("message"), dict):
            self._message = delta
        else:
            return []
        return [text for text in _texts(delta.get("content")) if text]

    def reply(self, *, done: bool) -> ModelReply:
        """The reply. Raises `ModelUnavailableError` if what came isn't a whole one; `done`: the stream said so."""
        if self.finish_reason in _ABANDONED:
            raise ModelUnavailableError(f"the model server gave the reply up: finish_reason {self.finish_reason!r}")
        if self.finish_reason is None and not done:
            raise ModelUnavailableError("the stream ended in the middle of the reply")
        try:
            provider = {"role": "assistant"} | _finished(self._message)
        except RecursionError:
            raise ModelUnavailableError("the stream is broken: it is nested too deep") from None
        content = provider.get("content")
        text = content if isinstance(content, str) else "".join(_texts(content)) if content else None
        refusal = provider.get("refusal")
        refusal = refusal if isinstance(refusal, str) and refusal else None
        calls = _calls(provider.get("tool_calls"))
        if self.finish_reason is None and not (text or refusal or provider.get("tool_calls")):
            raise ModelUnavailableError("the stream ended without a reply")
        return ModelReply(provider, text, refusal, calls, self.finish_reason, self._usage)


class _Pieces:
    """Text that is still growing."""

    __slots__ = ("pieces",)

    def __init__(self, piece: str) -> None:
        self.pieces = [piece]

    def __str__(self) -> str:
        text = "".join(self.pieces)
        try:
            text.encode()
        except UnicodeEncodeError:  # a character that was cut into two halves
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return text


def _merge_object(target: Json, delta: Json) -> Json:
    for key, value in delta.items():
        target[key] = _merged(target.get(key), value, key)
    return target


def _merged(old: Any, new: Any, key: str) -> Any:
    if new is None:
        return old
    if isinstance(new, str):
        if key in _WHOLE:
            return old or new
        if isinstance(old, _Pieces):
            old.pieces.append(new)
        elif isinstance(old, list):  # a content that began as a list of parts
            _merge_list(old, [{"type": "text", "text": new}] if new else [], key)
        else:
            return _Pieces(new)
        return old
    if isinstance(new, dict):
        return _merge_object(old if isinstance(old, dict) else {}, new)
    if isinstance(new, list):
        if isinstance(old, _Pieces):
            old = [{"type": "text", "text": old}] if str(old) else []
        return _merge_list(old if isinstance(old, list) else [], new, key)
    return new


def _merge_list(elements: list[Any], news: list[Any], key: str) -> list[Any]:
    find = _same_call if key == "tool_calls" else _same_element
    for new in news:
        if isinstance(new, dict):
            old = find(elements, new)
            if old is None:
                elements.append(old := {})
            _merge_object(old, new)
        else:
            elements.append(new)
    return elements


def _same_element(elements: list[Any], new: Json) -> Json | None:
    """The element that a delta goes on with: the last of its index, unless it is plainly another one."""
    old = _last(elements, "index", new.get("index")) if _has_index(new) else None
    if old is None or any(old.get(key) and new.get(key) and old[key] != new[key] for key in ("type", "id")):
        return None
    return old


def _same_call(elements: list[Any], new: Json) -> Json | None:
    """The call that a delta goes on with, None if it begins one.

    Servers begin each at index 0, leave the index out, make up another id for each delta or repeat the name in each.
    """
    old = _last(elements, "index", new["index"]) if _has_index(new) else _last(elements, "id", new.get("id"))
    if old is None and not _has_index(new) and not (new.get("id") and _function(new).get("name")):
        old = elements[-1] if elements and isinstance(elements[-1], dict) else None
    name, old_name = _function(new).get("name"), _function(old or {}).get("name")
    if old is None or not name or not old_name or (new.get("id") and new.get("id") == old.get("id")):
        return old
    arguments = str(_function(old).get("arguments") or "").strip()
    if new.get("id") and old.get("id"):
        begins = name != old_name or not arguments or _is_json(arguments)
    else:
        begins = name != old_name or (_is_json(arguments) and bool(_function(new).get("arguments")))
    return None if begins else old


def _last(elements: list[Any], key: str, value: Any) -> Json | None:
    found = (element for element in reversed(elements) if isinstance(element, dict) and element.get(key) == value)
    return next(found, None) if value is not None else None


def _has_index(element: Json) -> bool:
    return type(element.get("index")) is int


def _function(call: Json) -> Json:
    function = call.get("function") or call.get("custom")
    return function if isinstance(function, dict) else {}


def _is_json(text: str) -> bool:
    if not text.endswith("}"):  # most are asked about before their end
        return False
    try:
        jsontext.decode(text, "arguments")
    except UnreadableError:
        return False
    return True


def _finished(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return str(value)
    if isinstance(value, dict):
        return {key: _finished(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    indexes = [item["index"] if isinstance(item, dict) and _has_index(item) else None for item in value]
    if None not in indexes and len(set(indexes)) == len(indexes):
        value = sorted(value, key=lambda item: item["index"])
    done = [_finished(item) for item in value]
    return [
        {key: part for key, part in item.items() if key != "index"}
        if isinstance(item, dict) and _has_index(item)
        else item
        for item in done
    ]


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]


def _calls(calls: Any) -> tuple[ToolCall, ...]:
    """The calls that are ours to run, each with an id of its own."""
    ours = [call for call in calls if _is_ours(call)] if isinstance(calls, list) else []
    ids = [call.get("id") for call in ours]
    spare = (free for free in map("call_{}".format, range(2 * len(ids))) if free not in ids)
    seen: set[str] = set()
    made = []
    for call, given in zip(ours, ids, strict=True):
        identity = given if isinstance(given, str) and given and given not in seen else next(spare)
        seen.add(identity)
        name, arguments = _function(call).get("name"), _function(call).get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments)
        made.append(ToolCall(identity, name if isinstance(name, str) else "", arguments))
    return tuple(made)


def _is_ours(call: Any) -> bool:
    return isinstance(call, dict) and call.get("type") in ("function", None)
