"""Messages as people read them, whatever framework wrote them. Pure.

Knows the shapes of Turnkeep's runner, OpenAI (chat and responses), Anthropic, LangChain's dumps, Pydantic
AI, Gemini and ShareGPT. What it does not know it gives as readable JSON: nothing is left out silently
but bookkeeping (`metadata`, usage, ids).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from turnkeep.cli.jsonview import load, pretty

Kind = Literal["text", "thought", "call", "result", "note", "data"]

_ROLES = {
    "human": "user",
    "HumanMessage": "user",
    "ai": "assistant",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "gpt": "assistant",
    "observation": "tool",
    "function_call": "assistant",
    "function_call_output": "tool",
    "reasoning": "assistant",
    "response": "assistant",
    "request": "user",
}
_TEXT_KEYS = ("text", "value", "refusal", "transcript")
_THOUGHT_KEYS = ("thinking", "reasoning", "reasoning_content", "text", "content", "summary")
_MEDIA = ("image", "audio", "file", "document", "video", "media", "binary", "redacted")
_RESULT_BLOCKS = ("text", "image", "image_url", "audio", "document", "file", "input_text", "input_image")
_CALL_ID_KEYS = ("id", "call_id", "tool_call_id", "tool_use_id")
_ANSWER_KEYS = ("tool_call_id", "tool_use_id", "call_id", "id")


@dataclass(frozen=True)
class Part:
    """A piece of a message. `title` names the tool of a call or a result; `id` is the call's."""

    kind: Kind
    text: str
    title: str = ""
    id: str = ""


@dataclass(frozen=True)
class Message:
    """A message for reading: who says it, what stands beside that in the heading, and its pieces."""

    role: str
    detail: str
    parts: tuple[Part, ...]


def read_message(text: str) -> Message:
    """Read a message from its exact JSON text."""
    try:
        value = load(text)
        return _message(_unwrapped(value)) if isinstance(value, dict) else Message("message", "", (_data(value),))
    except (ValueError, RecursionError):
        return Message("message", "exact text", (Part("data", text),))


def read_call(text: str) -> Part:
    """Read a tool call from its exact JSON text."""
    try:
        value = load(text)
        return _call(value) if isinstance(value, dict) else _data(value)
    except (ValueError, RecursionError):
        return Part("call", text, "call")


def _message(message: dict[str, Any]) -> Message:
    role = _role(message)
    parts = [part for part in _parts(message, role) if part.text or part.title]
    if not parts:
        rest = {key: value for key, value in message.items() if key not in ("role", "metadata") and value is not None}
        parts = [_data(rest)] if rest else []
    metadata = _dict(message.get("metadata"))
    detail = [str(message.get("name") or metadata.get("tool_name") or "")]
    if role == "tool":
        detail.append(_first(message, _ANSWER_KEYS) or _first(metadata, _ANSWER_KEYS))
    return Message(role, " ".join(word for word in detail if word), tuple(parts))


def _unwrapped(message: dict[str, Any]) -> dict[str, Any]:
    """The message inside LangChain's two kinds of dumps."""
    if message.get("type") == "constructor" and isinstance(message.get("kwargs"), dict):
        names = message.get("id")
        kind = names[-1] if isinstance(names, list) and names else ""
        return {**message["kwargs"], "type": kind}
    if isinstance(message.get("data"), dict) and "content" in message["data"] and "type" in message:
        return {**message["data"], "type": message["type"]}
    return message


def _role(message: dict[str, Any]) -> str:
    for key in ("role", "from", "type", "kind"):
        if isinstance(word := message.get(key), str) and type(word) is str:
            if key == "kind" and word == "request" and _only_results(message):
                return "tool"
            return _ROLES.get(word, word)
    return "message"


def _only_results(message: dict[str, Any]) -> bool:
    kinds = [_dict(part).get("part_kind") for part in _list(message.get("parts"))]
    return bool(kinds) and all(kind in ("tool-return", "retry-prompt") for kind in kinds)


def _parts(message: dict[str, Any], role: str) -> Iterator[Part]:
    if "type" in message and message["type"] in ("function_call", "function_call_output", "reasoning"):
        yield from _block(message)
        return
    metadata = _dict(message.get("metadata"))
    verbatim = _dict(metadata.get("provider"))  # what a model said beside its content
    for key in ("reasoning_content", "reasoning"):
        if isinstance(thought := message.get(key, verbatim.get(key)), str):
            yield Part("thought", thought)
    seen: set[str] = set()
    for key in ("content", "value", "parts"):
        for part in _content(message.get(key)):
            seen.update([part.id] if part.kind == "call" else [])
            yield part
    if isinstance(refusal := message.get("refusal", verbatim.get("refusal")), str):
        yield Part("text", refusal, "refusal")
    if isinstance(message.get("audio"), dict):
        yield _media("audio", message["audio"])
    for calls in (message.get("tool_calls"), metadata.get("tool_calls"), message.get("function_call")):
        for call in [calls] if isinstance(calls, dict) else _list(calls):
            part = _call(call) if isinstance(call, dict) else _data(call)
            if not part.id or part.id not in seen:
                seen.add(part.id)
                yield part
    for call in _list(message.get("invalid_tool_calls")):
        yield _call(_dict(call))


def _content(content: Any) -> Iterator[Part]:
    if content is None:
        return
    if isinstance(content, list):
        for block in content:
            yield from _block(block)
    elif type(content) is str:
        yield Part("text", content)
    else:
        yield _data(content)


def _block(block: Any) -> Iterator[Part]:
    if type(block) is str:
        yield Part("text", block)
        return
    if not isinstance(block, dict):
        yield _data(block)
        return
    kind = str(block.get("type") or block.get("part_kind") or block.get("kind") or "")
    called = block.get("functionCall", block.get("function_call"))
    answered = block.get("functionResponse", block.get("function_response"))
    if isinstance(called, dict) or kind in ("tool-call", "tool_call", "function_call") or kind.endswith("tool_use"):
        yield _call(called if isinstance(called, dict) else block)
    elif isinstance(answered, dict):
        yield Part(
            "result",
            _text_of(answered.get("response")),
            str(answered.get("name") or ""),
            _first(answered, _ANSWER_KEYS),
        )
    elif kind == "tool-return" or kind.endswith(("tool_result", "call_output")):
        answer = _text_of(block.get("content", block.get("output")))
        name = str(block.get("tool_name") or ("failed call" if block.get("is_error") is True else ""))
        yield Part(
            "result",
            answer,
            name,
            _first(block, _ANSWER_KEYS),
        )
    elif kind in ("thinking", "reasoning"):
        yield Part("thought", next((_text_of(block[key]) for key in _THOUGHT_KEYS if block.get(key)), ""))
    elif any(word in kind for word in _MEDIA):
        yield _media(kind, block)
    elif kind in ("text", "input_text", "output_text", "refusal", "") and type(words := _words(block)) is str:
        yield Part("text", words, "refusal" if kind == "refusal" else "")
    elif kind in ("system-prompt", "user-prompt", "text", "retry-prompt", "instructions"):
        yield from (
            Part(p.kind, p.text, kind if kind == "retry-prompt" else p.title, p.id)
            for p in _content(block.get("content"))
        )
    else:
        yield _data(block)


def _words(block: dict[str, Any]) -> str | None:
    """The text of a block that has a text and nothing else that is worth reading."""
    keys = [key for key in _TEXT_KEYS if type(block.get(key)) is str]
    return str(block[keys[0]]) if keys else None


def _call(call: dict[str, Any]) -> Part:
    function = _dict(call.get("function"))
    name = str(call.get("name") or call.get("tool_name") or function.get("name") or "call")
    arguments = function.get("arguments")
    for key in ("arguments", "args", "input"):
        arguments = call.get(key) if arguments is None else arguments
    return Part("call", "" if arguments is None else _text_of(arguments), name, _first(call, _CALL_ID_KEYS))


def _media(kind: str, block: dict[str, Any]) -> Part:
    """What stands for something that is not text: where it is, or what it is and how large."""
    for value in _strings(block):
        if value.startswith(("http://", "https://", "file:")):
            return Part("note", f"[{kind}: {value[:200]}]")
    longest = max(_strings(block), key=len, default="")
    about = longest.split(",", 1)[0] if longest.startswith("data:") else ""
    about = about or next((v for v in _strings(block) if "/" in v and len(v) < 60), "")
    return Part("note", f"[{kind}: {about + ', ' if about else ''}{len(longest):,} characters]")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("type", "id"):
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif type(value) is str:
        yield value


def _text_of(value: Any) -> str:
    """A tool's arguments or result: text as it is, blocks of text joined, anything else as JSON."""
    if type(value) is str:
        return value
    if isinstance(value, list) and value and all(_dict(item).get("type") in _RESULT_BLOCKS for item in value):
        return "\n".join(part.text for part in _content(value))
    return "" if value is None else pretty(value)


def _data(value: Any) -> Part:
    return Part("data", pretty(value))


def _first(value: dict[str, Any], keys: Iterable[str]) -> str:
    return next((str(value[key]) for key in keys if isinstance(value.get(key), str)), "")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
