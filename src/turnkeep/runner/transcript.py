"""The runner's message format, and what of a transcript goes over the wire: pure.

A message is `{"role", "content", "metadata"}`. An assistant's calls are in `metadata.tool_calls`, the model's message
verbatim in `metadata.provider`. A tool's message names its call by `metadata.tool_call_id`, and by `metadata.index`,
the call's place in its assistant's message: providers reuse ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeep.model import PendingCall
from turnkeep.runner.effects import Json, ModelReply, Outcome, Policy

UNKNOWN_OUTCOME = (
    "The outcome of this call is unknown: the process that ran it was lost before it could tell. It may have taken "
    "effect, in whole or in part. Check before doing it again."
)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")  # servers refuse a history with other ones, such as models make up
_ROLES = ("user", "system", "developer")
_NO_RESULT = "No result of this call was recorded: its outcome is unknown."


# -- messages to store


def assistant_message(reply: ModelReply, timestamp: str) -> Json:
    """The message of a model's reply."""
    metadata: Json = {"timestamp": timestamp, "kind": reply_kind(reply)}
    if reply.calls:
        metadata["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in reply.calls
        ]
    metadata |= {"finish_reason": reply.finish_reason, "usage": reply.usage, "provider": reply.provider}
    return {"role": "assistant", "content": reply.content, "metadata": metadata}


def reply_kind(reply: ModelReply) -> str:
    """What a reply is: `tool_calls`, `refusal`, `truncated`, `text` or `empty`."""
    if reply.calls:
        return "tool_calls"
    if reply.refusal:
        return "refusal"
    if reply.finish_reason == "length":
        return "truncated"
    return "text" if reply.content else "empty"


def call_element(call_id: str, name: str, arguments: str, policy: Policy | None) -> Json:
    """A call as `tool_calls` of its checkpoint has it. Without a policy nobody can run it."""
    return {"id": call_id, "name": name, "arguments": arguments, "policy": policy and policy.value}


def tool_message(call: PendingCall, content: Any, outcome: Outcome, timestamp: str) -> Json:
    """The message of a tool's result."""
    return {
        "role": "tool",
        "content": content,
        "metadata": {
            "timestamp": timestamp,
            "tool_name": called_name(call.call),
            "tool_call_id": call.call_id,
            "index": call.index,
            "outcome": outcome.value,
        },
    }


def result_element(call: PendingCall, outcome: Outcome) -> Json:
    """A result as `tool_results` of its checkpoint has it; the content is in the message beside it."""
    return {
        "tool_call_id": call.call_id,
        "name": called_name(call.call),
        "outcome": outcome.value,
        "attempt": call.attempts,
    }


# -- calls, in our shape or in OpenAI's


def called_name(call: object) -> str | None:
    """The name of the tool that a call wants, if it says one."""
    name = _function(call).get("name")
    return name if isinstance(name, str) else None


def called_arguments(call: object) -> str:
    """The text of a call's arguments."""
    arguments = _function(call).get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)


def _function(call: object) -> Json:
    whole = _object(call)
    return _object(whole["function"]) if "function" in whole else whole


# -- the turn that is open


def invalid_replies(messages: Sequence[Json]) -> int:
    """How many of the turn's last replies, one after the other, held a call that could not be run."""
    count = 0
    invalid = False
    for message in reversed(messages):
        match message.get("role"):
            case "tool":
                invalid = invalid or _metadata(message).get("outcome") == Outcome.INVALID
            case "assistant" if invalid:
                count += 1
                invalid = False
            case _:
                break
    return count


# -- over the wire


def request_messages(instructions: str | None, messages: Sequence[Json]) -> list[Json]:
    """A transcript as a model takes it: each call followed by exactly one result, in the order of the calls (G7).

    Results are stored as they landed. A call without one (of a history that others wrote) gets a result that says
    so; a result without a call, or a second one, stays away.
    """
    wire: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for exchange in _exchanges(messages):
        wire += exchange.wire()
    return wire


@dataclass
class _Exchange:
    """A message that is no result, its calls, and the results that came before the next message with calls."""

    message: Json
    calls: list[Json]
    results: list[Json]

    def wire(self) -> Iterator[Json]:
        if self.message.get("role") != "assistant":
            role, content = self.message.get("role"), self.message.get("content")
            yield {
                "role": role if role in _ROLES else "user",
                "content": content if isinstance(content, list) else "" if content is None else _text(content),
            }
            return
        yield _wire_assistant(self.message, self.calls)
        left = list(self.results)
        for index, call in enumerate(self.calls):
            found = next((number for number, one in enumerate(left) if _answers(one, call, index)), None)
            content = _NO_RESULT if found is None else left.pop(found).get("content")
            yield {"role": "tool", "tool_call_id": call["id"], "content": _text(content)}


def _exchanges(messages: Sequence[Json]) -> list[_Exchange]:
    exchanges: list[_Exchange] = []
    calling: _Exchange | None = None
    for message in messages:
        if message.get("role") != "tool":
            exchanges.append(_Exchange(message, _calls(message), []))
            calling = exchanges[-1] if exchanges[-1].calls else calling
        elif calling is not None:
            calling.results.append(message)
    return exchanges


def _calls(message: Json) -> list[Json]:
    """The calls of an assistant's message, in our shape, each under an id of its own."""
    if message.get("role") != "assistant":
        return []
    listed = _metadata(message).get("tool_calls") or message.get("tool_calls")
    found = [_object(call) for call in listed] if isinstance(listed, list) else []
    given = [call["id"] if isinstance(call.get("id"), str) and call["id"] else None for call in found]
    taken = set(given)
    ids: list[str] = []
    for index, own in enumerate(given):
        made = own if own is not None and own not in ids else f"{own or 'call'}_{index}"
        while made in ids or (made != own and made in taken):
            made += "_"
        ids.append(made)
    return [
        {
            "id": ids[index],
            "given_id": given[index],
            "name": called_name(call) or "",
            "arguments": called_arguments(call),
        }
        for index, call in enumerate(found)
    ]


def _answers(result: Json, call: Json, index: int) -> bool:
    """Whether a result is that of a call: it names the call's index, or else its id."""
    metadata = _metadata(result)
    named = metadata.get("tool_call_id") or result.get("tool_call_id")
    fits = isinstance(named, str) and named in (call["given_id"], call["id"])
    if "index" in metadata and (fits or not named):
        return bool(metadata["index"] == index)
    return fits


def _wire_assistant(message: Json, calls: Sequence[Json]) -> Json:
    """The provider's own message, its calls under the ids that their results name."""
    provider = _metadata(message).get("provider")
    wire: Json = dict(provider) if isinstance(provider, dict) else {"content": message.get("content")}
    own = [call for call in _list(wire.pop("tool_calls", None)) if _is_function(call)]
    wire["role"] = "assistant"
    wire.setdefault("content", None)
    if calls:
        fitting = own if len(own) == len(calls) else [{}] * len(calls)
        wire["tool_calls"] = [_wire_call(one, call) for one, call in zip(fitting, calls, strict=True)]
    elif wire["content"] is None and not wire.get("refusal"):
        wire["content"] = ""
    return wire


def _wire_call(own: Json, call: Json) -> Json:
    # Some servers refuse a whole history for arguments that are no JSON; the result tells the model what they were.
    function = {
        **_object(own.get("function")),
        "name": _NOT_IN_NAMES.sub("_", call["name"]) or "unknown",
        "arguments": call["arguments"] if _is_object(call["arguments"]) else "{}",
    }
    return {**own, "id": call["id"], "type": "function", "function": function}


def _is_function(call: object) -> bool:
    return isinstance(call, dict) and call.get("type") in (None, "function") and "function" in call


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _metadata(message: Json) -> Json:
    return _object(message.get("metadata"))


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
