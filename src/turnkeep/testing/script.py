"""What a scripted model says, and how that looks on the wire. Pure: no I/O.

A reply is chosen by the request's content alone, so that the one given again after a crash is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Json = dict[str, Any]

ANY_USER = "*"
MODEL = "scripted"
_CREATED = 1_700_000_000  # the same in every reply, as everything else about it is
_WORDS = re.compile(r"\s*\S{1,24}|\s+")
_ARGUMENT_PIECES = re.compile(r".{1,12}", re.DOTALL)


class NoReplyError(LookupError):
    """The script has no reply to this request."""


@dataclass(frozen=True)
class ToolCall:
    """A call in a reply. `arguments` that are text are sent verbatim, JSON or not.

    Without an `id` it has one made from its place in the script: the same whenever the reply is given.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class Reply:
    """One reply of the model.

    `first_token_seconds` pass before its first chunk, `token_seconds` before every other. With `status` it is that
    HTTP error instead; with `break_after` the connection is cut after so many chunks. `times` is how often it fails
    in one of these ways before it is given properly, counted over all requests for it; None: always. `usage` and
    `finish_reason` are made up where not given. `extra` holds further keys of the message.
    """

    content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    reasoning: str | None = None
    refusal: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    first_token_seconds: float = 0.0
    token_seconds: float = 0.0
    status: int | None = None
    times: int | None = None
    break_after: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))
        if self.status is not None and self.break_after is not None:
            raise ValueError("a reply fails by its status or by break_after, not by both")
        if self.status is not None and not 400 <= self.status <= 599:
            raise ValueError(f"status: expected an HTTP error, 400 to 599, got {self.status}")
        if self.times is not None and self.status is None and self.break_after is None:
            raise ValueError("times: says how often a reply fails, which needs a status or break_after")
        for name in ("first_token_seconds", "token_seconds", "times", "break_after"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ValueError(f"{name}: expected a number from 0, got {value}")

    def fails(self, attempt: int) -> bool:
        """Whether the request for it after `attempt` earlier ones is to fail."""
        failing = self.status is not None or self.break_after is not None
        return failing and (self.times is None or attempt < self.times)


@dataclass(frozen=True)
class Exchange:
    """What a user says, and the replies to it: the first, the one after the first's tool results, and so on.

    `user` is the whole text of the message; `"*"` stands for any that no other exchange has.
    """

    user: str
    replies: Sequence[Reply]

    def __post_init__(self) -> None:
        object.__setattr__(self, "replies", tuple(self.replies))


@dataclass(frozen=True)
class Place:
    """Which reply a request is for: the last user message's text, and how many assistant messages follow it."""

    user: str
    index: int


# -- choosing


def place(request: Json) -> Place | None:
    """Return which reply a request is for, None if it has no user message."""
    messages = request.get("messages")
    after = 0
    for message in reversed(messages if isinstance(messages, list) else []):
        role = message.get("role") if isinstance(message, dict) else None
        if role == "user":
            return Place(_text(message.get("content")), after)
        after += role == "assistant"
    return None


def choose(script: Sequence[Exchange], request: Json) -> tuple[Place, Reply]:
    """Return the reply to a request. Raises NoReplyError."""
    found = place(request)
    if found is None:
        raise NoReplyError("the request has no message with role user, by which a scripted reply is chosen")
    by_user = {exchange.user: exchange for exchange in script}
    exchange = by_user.get(found.user) or by_user.get(ANY_USER)
    if exchange is None:
        raise NoReplyError(f"the script has no exchange for the user text {found.user!r}")
    if found.index >= len(exchange.replies):
        there = len(exchange.replies)
        raise NoReplyError(f"the script has {there} replies to {found.user!r}, and reply {found.index + 1} is wanted")
    return found, exchange.replies[found.index]


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(str(part.get("text", "")) for part in parts)
    return content if isinstance(content, str) else ""


# -- on the wire


def chunks(reply: Reply, at: Place, *, model: str = MODEL, include_usage: bool = False) -> list[Json]:
    """Return a reply as the `chat.completion.chunk` objects of a stream, whatever failure it is scripted with."""
    head = _head(at, model, "chat.completion.chunk") | ({"usage": None} if include_usage else {})
    made = [head | {"choices": [_choice(delta=delta)]} for delta in _deltas(reply, at)]
    made.append(head | {"choices": [_choice(delta={}, finish_reason=_finish_reason(reply))]})
    if include_usage:
        made.append(head | {"choices": [], "usage": _usage(reply, at)})
    return made


def completion(reply: Reply, at: Place, *, model: str = MODEL) -> Json:
    """Return a reply as the `chat.completion` object that answers a request without `stream`."""
    message: Json = {"role": "assistant", "content": reply.content, "refusal": reply.refusal}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = _calls(reply, at)
    message |= reply.extra
    choice = _choice(message=message, finish_reason=_finish_reason(reply))
    return _head(at, model, "chat.completion") | {"choices": [choice], "usage": _usage(reply, at)}


def error(status: int, message: str) -> Json:
    """Return an error as OpenAI's servers put it."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _deltas(reply: Reply, at: Place) -> Iterator[Json]:
    yield {"role": "assistant", "content": None if reply.content is None else ""}
    for piece in _WORDS.findall(reply.reasoning or ""):
        yield {"reasoning_content": piece}
    for piece in _WORDS.findall(reply.content or ""):
        yield {"content": piece}
    for piece in _WORDS.findall(reply.refusal or ""):
        yield {"refusal": piece}
    for index, call in enumerate(_calls(reply, at)):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [call | {"index": index, "function": call["function"] | {"arguments": ""}}]}
        for piece in _ARGUMENT_PIECES.findall(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
    if reply.extra:
        yield dict(reply.extra)


def _calls(reply: Reply, at: Place) -> list[Json]:
    made = []
    for number, call in enumerate(reply.tool_calls):
        arguments = call.arguments
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        call_id = f"call_{_hash(at, number)}" if call.id is None else call.id
        made.append({"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    return made


def _head(at: Place, model: str, kind: str) -> Json:
    return {"id": f"chatcmpl-{_hash(at)}", "object": kind, "created": _CREATED, "model": model}


def _choice(*, finish_reason: str | None = None, **what: Json) -> Json:
    return {"index": 0, **what, "logprobs": None, "finish_reason": finish_reason}


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _usage(reply: Reply, at: Place) -> Json:
    if reply.usage is not None:
        return dict(reply.usage)
    prompt, answer = len(_WORDS.findall(at.user)), sum(1 for _ in _deltas(reply, at))
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _hash(at: Place, *more: int) -> str:
    return hashlib.sha256(json.dumps([at.user, at.index, *more]).encode()).hexdigest()[:12]


# -- in files


def dump(script: Sequence[Exchange]) -> str:
    """Return a script as JSON, for `load`. Raises ValueError or TypeError for what JSON has not."""
    users = [exchange.user for exchange in script]
    if twice := sorted({user for user in users if users.count(user) > 1}):
        raise ValueError(f"two exchanges have the user text {twice[0]!r}: the second would never be chosen")
    return json.dumps([asdict(exchange) for exchange in script], allow_nan=False)


def load(text: str) -> tuple[Exchange, ...]:
    """Return the script that `dump` wrote."""
    return tuple(Exchange(data["user"], tuple(map(_reply, data["replies"]))) for data in json.loads(text))


def _reply(data: Json) -> Reply:
    return Reply(**data | {"tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"])})


@dataclass(frozen=True)
class Logged:
    """What the server has written down: the requests in the order they came, and how many were answered whole."""

    requests: tuple[Json, ...]
    finished: int


def read_log(text: str) -> Logged:
    """Read the server's log, whose last line a kill may have cut short."""
    entries = []
    for line in text.splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    requests = tuple(entry["request"] for entry in entries if "request" in entry)
    return Logged(requests, sum("finished" in entry for entry in entries))
