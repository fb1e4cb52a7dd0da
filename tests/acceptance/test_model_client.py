"""The model's client against real HTTP: a scripted model server that is killed, and servers that behave oddly."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from turnkeep.errors import ConfigurationError, InvalidInputError
from turnkeep.runner.agent import Agent
from turnkeep.runner.deltas import ModelUnavailableError
from turnkeep.runner.effects import AskModel, ModelRefused, ModelReply
from turnkeep.runner.effects import ToolCall as Called
from turnkeep.runner.models import ModelClient
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

Json = dict[str, Any]
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

ASK = AskModel([{"role": "user", "content": "hello"}], [])
DONE = b"data: [DONE]\n\n"


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    data = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@dataclass
class Odd:
    """What a server of one's own saw."""

    base_url: str = ""
    requests: list[Json] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Odd]:
    """A server that reads each request and leaves the reply, to the last byte, to `answer`."""
    odd, writers = Odd(), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        odd.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(line for line in head.lower().splitlines() if line.startswith("content-length:"))
                odd.headers.append(head)
                odd.requests.append(json.loads(await reader.readexactly(int(length.split(":")[1]))))
                await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            odd.gone.set()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    odd.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield odd
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


def head(status: str = "200 OK", kind: str = "text/event-stream", *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"content-type: {kind}", "transfer-encoding: chunked", *more)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def streaming(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> Answer:
    """An answer in chunked encoding, each piece flushed on its own; then `end`."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head())
        for piece in pieces:
            writer.write(frame(piece))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(end)
        await writer.drain()

    return answer


def failing(status: str, body: object, *headers: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        writer.write(head(status, "application/json", *headers) + frame(text.encode()) + b"0\r\n\r\n")
        await writer.drain()

    return answer


def resetting(answer: Answer) -> Answer:
    """The answer, and then the connection is reset as by a process that dies."""

    async def reset(writer: asyncio.StreamWriter) -> None:
        await answer(writer)
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return reset


def hanging(answer: Answer) -> Answer:
    async def hang(writer: asyncio.StreamWriter) -> None:
        await answer(writer)
        await asyncio.Event().wait()

    return hang


async def nothing(writer: asyncio.StreamWriter) -> None:
    """Say nothing at all."""


async def ask(
    base_url: str, effect: AskModel = ASK, silence: float = 30.0, **options: Any
) -> ModelReply | ModelRefused:
    async with ModelClient(Agent("a", "m", base_url=base_url, timeout=silence, options=options)) as client:
        return await client.reply(effect)


async def answered(answer: Answer, **options: Any) -> ModelReply | ModelRefused:
    async with serving(answer) as odd:
        return await ask(odd.base_url, **options)


# -- a server that behaves


async def test_a_reply_with_calls_and_then_its_answer() -> None:
    script = [
        Exchange(
            "weather?",
            [
                Reply(
                    content="Looking.", reasoning="Two towns.", tool_calls=[ToolCall("look", {"town": "Łódź"}, "c1")]
                ),
                Reply(content="It is wet."),
            ],
        )
    ]
    tools = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}]
    messages: list[Json] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "weather?"}]
    told: list[str] = []
    with ModelServer(script) as server:
        async with ModelClient(Agent("a", "m", base_url=server.base_url, options={"top_k": 3})) as client:
            first = await client.reply(AskModel(messages, tools), told.append)
            assert isinstance(first, ModelReply)
            result = {"role": "tool", "tool_call_id": "c1", "content": "wet"}
            second = await client.reply(AskModel([*messages, first.provider, result], tools))
        request = server.requests[0]
    assert first.calls == (Called("c1", "look", '{"town":"Łódź"}'),)
    assert (first.content, first.finish_reason) == ("Looking.", "tool_calls")
    assert first.provider["reasoning_content"] == "Two towns."
    assert first.usage is not None
    assert "".join(told) == "Looking."
    assert isinstance(second, ModelReply)
    assert (second.content, second.calls, second.finish_reason) == ("It is wet.", (), "stop")
    assert request["messages"] == messages
    assert request["tools"] == tools
    assert (request["model"], request["top_k"], request["stream"]) == ("m", 3, True)
    assert request["stream_options"] == {"include_usage": True}


async def test_a_server_killed_in_the_middle_is_unavailable_until_it_is_back() -> None:
    with ModelServer([Exchange("hello", [Reply(content="one two three")])]) as server:
        async with ModelClient(Agent("a", "m", base_url=server.base_url)) as client:
            server.pace(token_seconds=3600.0)
            asking = asyncio.create_task(client.reply(ASK))
            while not any(server.status()["chunks"]):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0)
            server.kill()
            with pytest.raises(ModelUnavailableError, match="broke"):
                await asking
            with pytest.raises(ModelUnavailableError, match="can't be reached"):
                await client.reply(ASK)
            server.pace()
            server.start()
            reply = await client.reply(ASK)
    assert isinstance(reply, ModelReply)
    assert reply.content == "one two three"


async def test_text_is_told_before_the_reply_is_whole() -> None:
    first = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head() + frame(chunk("one ")))
        await first.wait()
        writer.write(frame(chunk("two", "stop") + DONE) + b"0\r\n\r\n")

    told: list[str] = []

    def on_text(text: str) -> None:
        told.append(text)
        first.set()

    async with serving(answer) as odd, ModelClient(Agent("a", "m", base_url=odd.base_url)) as client:
        await asyncio.wait_for(client.reply(ASK, on_text), 60)
    assert told == ["one ", "two"]


# -- requests


@pytest.mark.parametrize(("own", "environment", "sent"), [("k", "e", "k"), (None, "e", "e"), (None, "", "none")])
async def test_the_key_is_the_agents_or_the_environments_or_any(
    own: str | None, environment: str, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", environment)
    async with serving(streaming(chunk("x", "stop"))) as odd:
        async with ModelClient(Agent("a", "m", base_url=odd.base_url, api_key=own)) as client:
            await client.reply(ASK)
        assert f"authorization: bearer {sent}\r\n" in odd.headers[0].lower()


async def test_options_go_over_the_wire() -> None:
    async with serving(streaming(chunk("x", "stop"))) as odd:
        await ask(
            odd.base_url,
            temperature=0.5,
            min_p=0.1,
            stream_options=None,
            extra_body={"top_k": 2},
            extra_headers={"x-tenant": "t1"},
        )
    assert odd.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "temperature": 0.5,
            "min_p": 0.1,
            "top_k": 2,
        }
    ]
    assert "x-tenant: t1" in odd.headers[0].lower()


async def test_connections_are_used_again() -> None:
    async with serving(streaming(chunk("x", "stop"), DONE)) as odd:
        async with ModelClient(Agent("a", "m", base_url=odd.base_url)) as client:
            for _ in range(3):
                await client.reply(ASK)
        assert odd.connections == 1


async def test_a_lone_surrogate_is_replaced_on_the_way_out() -> None:
    async with serving(streaming(chunk("x", "stop"))) as odd:
        messages: list[Json] = [{"role": "user", "content": "a\ud800b\ud83d\ude00"}]
        await ask(odd.base_url, AskModel(messages, []))
    assert odd.requests[0]["messages"][0]["content"] == "a\ufffdb😀"
    assert messages[0]["content"] == "a\ud800b\ud83d\ude00"


@pytest.mark.parametrize("option", [{"x": object()}, {"x": float("nan")}, {"extra_headers": {"x": "\n"}}])
async def test_what_can_not_be_sent_is_refused(option: Json) -> None:
    refused = await answered(nothing, **option)
    assert isinstance(refused, ModelRefused)
    assert "can't be sent" in refused.message


@pytest.mark.parametrize("base_url", ["gpu:8000/v1", "/v1", "ftp://gpu/v1", "http://:8000/v1", "http://gpu:port/v1"])
def test_an_address_that_is_none_is_refused(base_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'a'"):
        ModelClient(Agent("a", "m", base_url=base_url))


@pytest.mark.parametrize("option", ["messages", "tools", "stream", "n"])
def test_options_that_are_the_loops_are_refused(option: str) -> None:
    with pytest.raises(InvalidInputError, match=option):
        ModelClient(Agent("a", "m", base_url="http://gpu", options={option: 1}))


def test_without_openai_the_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'turnkeep\[openai\]'"):
        ModelClient(Agent("a", "m"))


# -- refusals and what passes


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        ("400 Bad Request", {"error": {"message": "too many tokens", "code": 400}}, "too many tokens"),
        ("401 Unauthorized", {"error": "no key"}, "no key"),
        ("403 Forbidden", "go away", "go away"),
        ("404 Not Found", {"detail": "no such model"}, "no such model"),
        ("405 Method Not Allowed", [], "HTTP 405"),
        ("413 Too Large", {"object": "error", "message": "too large"}, "too large"),
        ("422 Unprocessable", {"detail": [{"loc": ["messages"]}]}, "messages"),
        ("500 Oops", {"error": {"message": "too long", "type": "exceed_context_size_error"}}, "too long"),
        ("304 Not Modified", "", "HTTP 304"),
    ],
)
async def test_a_refusal_for_good_is_told(status: str, body: object, message: str) -> None:
    refused = await answered(failing(status, body))
    assert isinstance(refused, ModelRefused)
    assert refused.status == int(status[:3])
    assert message in refused.message


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_status_that_may_pass_is_asked_only_once(status: int) -> None:
    async with serving(failing(f"{status} Later", {"error": {"message": "busy"}})) as odd:
        with pytest.raises(ModelUnavailableError, match=f"HTTP {status}: busy") as caught:
            await ask(odd.base_url)
        assert caught.value.retry_after is None
        assert len(odd.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (["retry-after: 7"], 7.0),
        (["retry-after: 0.5"], 0.5),
        (["retry-after-ms: 250", "retry-after: 1"], 0.25),
        (["date: Wed, 21 Oct 2026 07:28:00 GMT", "retry-after: Wed, 21 Oct 2026 07:28:30 GMT"], 30.0),
        (["retry-after: soon"], None),
        (["retry-after: -1"], None),
        (["retry-after: inf"], None),
        (["retry-after: Wed, 21 Oct 2015 07:28:30 GMT"], None),
    ],
)
async def test_the_time_that_a_server_asks_for_is_told(headers: list[str], seconds: float | None) -> None:
    with pytest.raises(ModelUnavailableError) as caught:
        await answered(failing("429 Busy", "", *headers))
    assert caught.value.retry_after == seconds


# -- streams that are not whole


CUT = chunk("one two")[:-9]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(streaming(chunk("one")), id="ends without a reason"),
        pytest.param(streaming(), id="is empty"),
        pytest.param(streaming(DONE), id="only ends"),
        pytest.param(streaming(chunk("one"), end=b""), id="is cut off"),
        pytest.param(streaming(chunk("one"), CUT), id="ends in a chunk"),
        pytest.param(streaming(chunk("one"), b"data: {\n\n", DONE), id="is no JSON"),
        pytest.param(streaming(chunk("one"), b"data: [1]\n\n", DONE), id="is no object"),
        pytest.param(streaming(b'data: {"x": NaN}\n\n', DONE), id="has NaN"),
        pytest.param(streaming(b"data: " + b"[" * 100_000 + b"\n\n", DONE), id="is too deep"),
        pytest.param(streaming(chunk("one"), b"data: \xff\n\n", DONE), id="is no UTF-8"),
        pytest.param(streaming(chunk("one"), b"zz\r\n", end=b"zz\r\n"), id="breaks the protocol"),
        pytest.param(streaming(chunk("x", "stop", error={"message": "m", "code": 400}), DONE), id="error"),
        pytest.param(streaming(b'data: {"error": "overloaded"}\n\n', DONE), id="error as text"),
        pytest.param(streaming(b'event: error\ndata: {"message": "m"}\n\n', DONE), id="error event"),
        pytest.param(streaming(b'data: {"object": "error", "message": "m"}\n\n', DONE), id="error object"),
        pytest.param(streaming(chunk("one", "abort"), DONE), id="was given up"),
        pytest.param(resetting(streaming(chunk("one"), end=b"")), id="is reset"),
        pytest.param(resetting(nothing), id="is reset before the head"),
        pytest.param(failing("200 OK", "<html>"), id="is no stream"),
        pytest.param(failing("200 OK", {"error": {"message": "m"}}), id="is an error in a body"),
    ],
)
async def test_a_stream_that_is_not_whole_is_no_reply(answer: Answer) -> None:
    async def once(writer: asyncio.StreamWriter) -> None:
        await answer(writer)
        writer.close()

    with pytest.raises(ModelUnavailableError):
        await answered(once)


async def test_an_error_body_that_breaks_off_may_pass() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head("400 Bad Request") + b"5\r\n{")
        writer.close()

    with pytest.raises(ModelUnavailableError):
        await answered(answer)


async def test_a_context_that_is_too_long_is_refused_in_the_stream_too() -> None:
    error = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    refused = await answered(streaming(b"data: " + json.dumps(error).encode() + b"\n\n"))
    assert refused == ModelRefused("too long")


@pytest.mark.parametrize("answer", [nothing, streaming(chunk("one"), end=b"")], ids=["at once", "in the middle"])
async def test_a_server_that_falls_silent_is_given_up(answer: Answer) -> None:
    with pytest.raises(ModelUnavailableError, match="Timeout"):
        await answered(hanging(answer), silence=0.2)


# -- streams that are


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(streaming(chunk("one two"), chunk(None, "stop"), DONE), id="plain"),
        pytest.param(streaming(chunk("one two"), DONE), id="no reason"),
        pytest.param(streaming(chunk("one two", "stop")), id="no DONE"),
        pytest.param(streaming(chunk("one two", "stop"), end=b""), id="cut off after its end"),
        pytest.param(resetting(streaming(chunk("one two", "stop"), end=b"")), id="reset after its end"),
        pytest.param(streaming(chunk("one two", "stop"), b"data: [DONE]"), id="no line after DONE"),
        pytest.param(
            streaming(
                b": hello\n\n",
                chunk("one "),
                b": still there\n\nid: 7\nretry: 1\n\n",
                b":\n" + chunk("two")[:-1] + b":\n\n",
                DONE,
            ),
            id="comments",
        ),
        pytest.param(streaming((chunk("one two", "stop") + DONE).replace(b"\n", b"\r\n")), id="CRLF"),
        pytest.param(streaming((chunk("one two", "stop") + DONE).replace(b"\n", b"\r")), id="CR"),
        pytest.param(streaming(chunk("one two").replace(b", ", b",\n:\ndata:"), DONE), id="data in lines"),
        pytest.param(streaming(chunk("one two").replace(b"data: ", b"data:"), DONE), id="no space"),
        pytest.param(streaming(*(bytes([b]) for b in chunk("one two", "stop") + DONE)), id="byte by byte"),
        pytest.param(
            streaming(*(bytes([b]) for b in (chunk("one two", "stop") + DONE).replace(b"\n", b"\r\n"))),
            id="CRLF byte by byte",
        ),
        pytest.param(
            failing("200 OK", {"choices": [{"message": {"content": "one two"}, "finish_reason": "stop"}]}),
            id="no stream at all",
        ),
        pytest.param(failing("200 OK", (chunk("one two", "stop") + DONE).decode()), id="a stream called JSON"),
    ],
)
async def test_a_whole_reply_is_known_however_it_comes(answer: Answer) -> None:
    async def once(writer: asyncio.StreamWriter) -> None:
        await answer(writer)
        writer.close()

    reply = await answered(once)
    assert isinstance(reply, ModelReply)
    assert reply.content == "one two"


async def test_line_separators_in_a_text_end_no_line() -> None:
    text = "a\u2028b\u0085c\u2029d\x0be"
    data = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    raw = json.dumps(data, ensure_ascii=False).replace("\\u000b", "\\u000b").encode()
    reply = await answered(streaming(b"data: " + raw + b"\n\n", DONE))
    assert isinstance(reply, ModelReply)
    assert reply.content == text


async def test_a_connection_left_open_after_the_end_holds_nothing_up() -> None:
    answer = hanging(streaming(chunk("one", "stop"), DONE, end=b""))
    reply = await asyncio.wait_for(answered(answer, silence=3600.0), 60)
    assert isinstance(reply, ModelReply)


async def test_cancelling_closes_the_connection_and_the_client_stays_good() -> None:
    told = asyncio.Event()
    replies = iter([hanging(streaming(chunk("one"), end=b"")), streaming(chunk("two", "stop"), DONE)])

    async def answer(writer: asyncio.StreamWriter) -> None:
        await next(replies)(writer)

    async with serving(answer) as odd, ModelClient(Agent("a", "m", base_url=odd.base_url)) as client:
        asking = asyncio.create_task(client.reply(ASK, lambda _: told.set()))
        await asyncio.wait_for(told.wait(), 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        reply = await client.reply(ASK)
        assert odd.connections == 2
    assert isinstance(reply, ModelReply)
    assert reply.content == "two"


async def test_what_on_text_raises_comes_out() -> None:
    def on_text(text: str) -> None:
        raise OSError("disk full")

    async with (
        serving(streaming(chunk("one", "stop"), DONE)) as odd,
        ModelClient(Agent("a", "m", base_url=odd.base_url)) as client,
    ):
        with pytest.raises(OSError, match="disk full"):
            await client.reply(ASK, on_text)
