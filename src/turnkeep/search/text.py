"""The words of a message, whatever framework wrote it. Pure.

Knows the shapes of Turnkeep's runner, OpenAI (chat and responses), Anthropic, Gemini, LangChain's dumps, Pydantic AI,
ShareGPT. Of these it takes what people read: no ids, no base64, no addresses of data. Of what it does not know it takes
every string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["user", "assistant", "system", "tool", "call", "reasoning", "other"]

KINDS: Final[tuple[Kind, ...]] = ("user", "assistant", "system", "tool", "call", "reasoning", "other")
USUAL: Final[frozenset[Kind]] = frozenset({"user", "assistant", "other"})
"""What is searched unless one asks for more: tool results, calls and reasoning are long, seldom what is recalled."""

_ROLES: Final[dict[str, Kind]] = {
    **dict.fromkeys(("user", "human", "HumanMessage", "HumanMessageChunk", "request", "user-prompt"), "user"),
    **dict.fromkeys(("assistant", "ai", "AIMessage", "AIMessageChunk", "gpt", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("model", "bot", "response"), "assistant"),
    **dict.fromkeys(("system", "developer", "SystemMessage", "system-prompt", "instructions"), "system"),
    **dict.fromkeys(("tool", "function", "ToolMessage", "FunctionMessage", "observation"), "tool"),
    "function_call": "call",
    "reasoning": "reasoning",
}
_HOLDERS: Final = ("content", "parts", "value", "text")  # where a message's own words are
_BESIDE: Final = ("tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning", "thinking")
_WORDS: Final = ("text", "value", "refusal", "transcript", "content")
_THOUGHTS: Final = ("thinking", "think", "reasoning", "reasoning_text", "summary_text", "thought")
_MEDIA: Final = ("image", "audio", "video", "file", "document", "media", "binary", "container_upload")
_TITLES: Final = ("filename", "title", "caption", "transcript", "alt", "context")
_ARGUMENTS: Final = ("arguments", "args", "input", "action", "queries", "code", "query")
_ANSWERS: Final = ("content", "output", "outputs", "result", "results", "response")
_NO_WORDS: Final = frozenset(
    {
        "id",
        "type",
        "kind",
        "role",
        "from",
        "name",
        "lc",
        "index",
        "signature",
        "encrypted_content",
        "data",
        "media_type",
        "mime_type",
        "mimeType",
        "part_kind",
        "timestamp",
        "created",
        "created_at",
        "call_id",
        "tool_call_id",
        "tool_use_id",
        "run_id",
        "model",
        "model_name",
        "url",
        "uri",
        "format",
        "detail",
        "status",
        "identifier",
        "finish_reason",
        "usage",
        "usage_metadata",
        "response_metadata",
        "cache_control",
        "annotations",
        "metadata",
        "embedding",
        "messageId",
        "parentMessageId",
        "parentId",
        "childrenIds",
        "provider_name",
        "provider_details",
        "provider_response_id",
    }
)
_BLOB: Final = re.compile(r"data:[\w.+-]*/?[\w.+-]*[;,]|[A-Za-z0-9+/_=-]{256,}\Z")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Piece:
    """Some words of a message, and what they are."""

    kind: Kind
    text: str


def storable(text: str) -> str:
    """The text as Postgres can hold it: without NUL, and with U+FFFD for each half of a character."""
    return _SURROGATE.sub("\ufffd", text.replace("\0", "")) if not text.isascii() else text.replace("\0", "")


def words(message: str, include: Iterable[Kind] = USUAL) -> str:
    """The words of a message from its exact JSON text, as Postgres can hold them: those of the kinds asked for."""
    wanted = frozenset(include)
    texts = (storable(piece.text).strip() for piece in pieces(message) if piece.kind in wanted)
    return "\n\n".join(text for text in texts if text)


def pieces(message: str) -> list[Piece]:
    """All words of a message from its exact JSON text, in order."""
    try:
        # What numbers it holds is of no interest here, and some can't be held.
        value = json.loads(message, parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing)
    except (ValueError, RecursionError):
        return [Piece("other", message)]
    try:
        return list(_message(value, "other"))
    except RecursionError:
        return [Piece("other", text) for text in _strings(value)]


def _nothing(_: str) -> None:
    return None


def _message(value: Any, role: Kind) -> Iterator[Piece]:
    if not isinstance(value, dict):
        yield from _content(value, role)
        return
    message = _unwrapped(value)
    role = _role(message, role)
    inner = message.get("message", message.get("content"))
    if isinstance(inner, dict) and ("role" in inner or "parts" in inner):  # an event around a message
        yield from _message(inner, role)
        return
    if _is_item(message):
        yield from _block(message, role)
        return
    yield from _beside(message)
    known = False
    for key in _HOLDERS:
        if message.get(key) is not None and not (known and key in ("text", "value")):
            known = True
            yield from _content(message[key], role)
    for key in ("refusal", "audio"):
        yield from _content(_said(message, key), role)
    yield from _calls(message)
    if not known and not any(message.get(key) for key in _BESIDE) and not _is_ours(message):
        yield from (Piece(role, text) for text in _strings(message))


def _unwrapped(message: dict[str, Any]) -> dict[str, Any]:
    """The message inside LangChain's two kinds of dumps."""
    if "lc" in message and isinstance(message.get("kwargs"), dict):
        names = message.get("id")
        return {**message["kwargs"], "type": names[-1] if isinstance(names, list) and names else "other"}
    if isinstance(message.get("data"), dict) and "type" in message and "content" in message["data"]:
        return {**message["data"], "type": message["type"]}
    return message


def _role(message: dict[str, Any], role: Kind) -> Kind:
    if isinstance(message.get("isCreatedByUser"), bool):
        return "user" if message["isCreatedByUser"] else "assistant"
    for key in ("role", "from", "type", "kind", "author"):
        if isinstance(word := message.get(key), str) and word in _ROLES:
            return _ROLES[word]
    return role


def _is_item(message: dict[str, Any]) -> bool:
    """Whether it is no message with a role, but one of the steps that stand beside messages in a list of items."""
    kind = message.get("type")
    return (
        "role" not in message
        and isinstance(kind, str)
        and (kind.endswith(("_call", "call_output")) or kind == "reasoning")
    )


def _is_ours(message: dict[str, Any]) -> bool:
    """Whether it has the shape of a message, with nothing in it."""
    return any(key in message for key in ("content", "parts", "value")) and _role(message, "other") != "other"


def _beside(message: dict[str, Any]) -> Iterator[Piece]:
    """What a model thought before it spoke."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        if thought := _said(message, key):
            yield from _content(thought, "reasoning")
            return


def _said(message: dict[str, Any], key: str) -> Any:
    """What a message, or the model's own message that is kept with it, has under a key."""
    for holder in (
        message,
        _dict(message.get("additional_kwargs")),
        _dict(_dict(message.get("metadata")).get("provider")),
    ):
        if holder.get(key):
            return holder[key]
    return None


def _calls(message: dict[str, Any]) -> Iterator[Piece]:
    seen: list[Any] = []
    for holder in (message, _dict(message.get("metadata")), _dict(message.get("additional_kwargs"))):
        for key in ("tool_calls", "function_call", "invalid_tool_calls"):
            for call in holder[key] if isinstance(holder.get(key), list) else [holder.get(key)]:
                if isinstance(call, dict) and call.get("id") not in seen:
                    seen += [call["id"]] if call.get("id") is not None else []
                    yield _call(call)


def _call(call: dict[str, Any]) -> Piece:
    """What a call asks for: the tool's name and the arguments' words."""
    inner = next(
        (call[key] for key in ("function", "tool_call", "functionCall") if isinstance(call.get(key), dict)), call
    )
    names = [inner[key] for key in ("name", "tool_name") if isinstance(inner.get(key), str)]
    arguments = [text for key in _ARGUMENTS if inner.get(key) is not None for text in _strings(inner[key], whole=True)]
    return Piece("call", " ".join([*names[:1], *arguments]))


def _content(value: Any, role: Kind) -> Iterator[Piece]:
    if isinstance(value, str):
        yield Piece(role, value)
    elif isinstance(value, list):
        for block in value:
            yield from _block(block, role)
    elif isinstance(value, dict):
        yield from _block(value, role)


def _block(block: Any, role: Kind) -> Iterator[Piece]:
    if not isinstance(block, dict):
        yield from _content(block, role)
        return
    kind = next((block[key] for key in ("type", "part_kind", "kind") if isinstance(block.get(key), str)), "")
    called = block.get("functionCall", block.get("tool_call"))
    answered = block.get("functionResponse")
    if isinstance(called, dict):
        yield _call(called)
        yield from _answer(called, "tool")
    elif isinstance(answered, dict):
        yield from _answer(answered, "tool")
    elif kind.endswith(("tool_result", "call_output")) or kind in (
        "tool-return",
        "builtin-tool-return",
        "retry-prompt",
    ):
        yield from _answer(block, "tool")
    elif kind.endswith(("tool_use", "_call", "tool-call")):
        yield _call(block)
        if not any(word in kind for word in _MEDIA):
            yield from _answer(block, "tool")
    elif kind in _THOUGHTS or block.get("thought") is True:
        yield from _thought(block, kind)
    elif kind.startswith("redacted"):
        return
    elif any(word in kind for word in _MEDIA) or "inlineData" in block or "fileData" in block:
        yield from _media(block, role)
    else:
        yield from _said_in(block, _ROLES.get(kind, role) if "part_kind" in block else role)


def _said_in(block: dict[str, Any], role: Kind) -> Iterator[Piece]:
    """The text of a block that is one, or every string of one that is not known."""
    for key in _WORDS:
        if isinstance(block.get(key), str | list):
            yield from _content(block[key], role)
            return
    yield from (Piece(role, text) for text in _strings(block))


def _thought(block: dict[str, Any], kind: str) -> Iterator[Piece]:
    for key in (kind, "text", "content", "summary"):
        if block.get(key) and not isinstance(block[key], bool):
            yield from (Piece("reasoning", text) for text in _strings(block[key]))
            return


def _answer(block: dict[str, Any], role: Kind) -> Iterator[Piece]:
    """What a tool has answered: text, blocks, or any value."""
    for key in _ANSWERS:
        value = block.get(key)
        if isinstance(value, dict):
            yield from (Piece(role, text) for text in _strings(value, whole=True))
        elif value is not None:
            yield from _content(value, role)


def _media(block: dict[str, Any], role: Kind) -> Iterator[Piece]:
    """What is said of something that is no text, or the text that it is."""
    for holder in (block, *(value for value in block.values() if isinstance(value, dict))):
        for key in _TITLES:
            if isinstance(holder.get(key), str) and not _BLOB.match(holder[key]):
                yield Piece(role, holder[key])
        if holder.get("type") == "text" and isinstance(holder.get("data"), str):
            yield Piece(role, holder["data"])
        elif holder.get("type") == "content":
            yield from _content(holder.get("content"), role)


def _strings(value: Any, *, whole: bool = False) -> Iterator[str]:
    """Every string in a value that may be words, in order. In a `whole` one, no key stands for bookkeeping."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if one and not _BLOB.match(one):
                yield one
        elif isinstance(one, list):
            waiting += reversed(one)
        elif isinstance(one, dict):
            waiting += reversed([item for key, item in one.items() if whole or key not in _NO_WORDS])


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
