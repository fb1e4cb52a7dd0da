"""The scripted model server as OpenAI's client sees it, and as it dies."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from tests.observing import PATIENCE, until
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall
from turnkeep.testing.script import Place, chunks, dump

STORY = " ".join(f"word{number}" for number in range(40))
LONG = 3_600.0  # seconds of silence, which no test waits for

SCRIPT = [
    Exchange("tell", [Reply(STORY, usage={"prompt_tokens": 3, "completion_tokens": 40, "total_tokens": 43})]),
    Exchange("weather", [Reply("Looking.", [ToolCall("look", {"city": "Łódź"}), ToolCall("pay", {})]), Reply("Rain.")]),
    Exchange("invalid", [Reply(tool_calls=[ToolCall("look", '{"city": ')])]),
    Exchange("think", [Reply("42", reasoning="six times seven", extra={"signature": "abc"})]),
    Exchange("harm", [Reply(refusal="I can not do that.")]),
    Exchange("busy", [Reply("at last", status=503, times=2)]),
    Exchange("too much", [Reply(status=400)]),
    Exchange("break", [Reply(STORY, break_after=5, times=1)]),
    Exchange("slow", [Reply(STORY, token_seconds=LONG)]),
]


class Reading:
    """A stream of a reply: what has come of it so far, while a task reads on."""

    def __init__(self, client: AsyncOpenAI, *messages: ChatCompletionMessageParam | str, **options: Any) -> None:
        self.chunks: list[ChatCompletionChunk] = []
        self.task = asyncio.create_task(self._read(client, [_message(message) for message in messages], options))

    async def _read(
        self, client: AsyncOpenAI, messages: list[ChatCompletionMessageParam], options: dict[str, Any]
    ) -> None:
        async with asyncio.timeout(PATIENCE):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, **options)
            async with stream:
                async for chunk in stream:
                    self.chunks.append(chunk)

    @property
    def text(self) -> str:
        return self.joined("content")

    def joined(self, key: str) -> str:
        return "".join(getattr(chunk.choices[0].delta, key, None) or "" for chunk in self.chunks if chunk.choices)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call, put together from the deltas."""
        made: list[list[str]] = []
        for chunk in self.chunks:
            for delta in chunk.choices[0].delta.tool_calls or ():
                assert delta.function is not None
                if delta.index == len(made):
                    made.append([delta.id or "", delta.function.name or "", ""])
                made[delta.index][2] += delta.function.arguments or ""
        return [(call[0], call[1], call[2]) for call in made]


def _message(message: ChatCompletionMessageParam | str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": message} if isinstance(message, str) else message


async def read(client: AsyncOpenAI, *messages: ChatCompletionMessageParam | str, **options: Any) -> Reading:
    reading = Reading(client, *messages, **options)
    await reading.task
    return reading


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(SCRIPT) as running:
        yield running


@pytest.fixture
async def client(server: ModelServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as made:
        yield made


@contextmanager
def raw_request(port: int, user: str, *, stream: bool = True) -> Iterator[http.client.HTTPConnection]:
    """A connection on which a request is made."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        body = {"model": "m", "messages": [{"role": "user", "content": user}], "stream": stream}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        yield connection


def get(port: int, path: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.load(response)


def refuses(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) != 0


# -- replies


async def test_text_streams_piece_by_piece_and_its_usage_is_told(server: ModelServer, client: AsyncOpenAI) -> None:
    reading = await read(client, "tell", stream_options={"include_usage": True})
    assert reading.text == STORY
    assert len(reading.chunks) == 43
    assert reading.chunks[-2].choices[0].finish_reason == "stop"
    assert reading.chunks[-1].usage is not None
    assert reading.chunks[-1].usage.total_tokens == 43
    assert reading.chunks[0].model == "m"
    await until(lambda: server.finished == 1, "the reply's end in the log")


async def test_calls_are_put_together_and_their_results_bring_the_next_reply(client: AsyncOpenAI) -> None:
    reading = await read(client, "weather")
    (first, *look), (second, *pay) = reading.calls
    assert (look, pay) == (["look", '{"city":"Łódź"}'], ["pay", "{}"])
    assert first.startswith("call_")
    assert second not in ("", first)
    assert reading.text == "Looking."
    assert reading.chunks[-1].choices[0].finish_reason == "tool_calls"
    answered = await read(
        client,
        "weather",
        {"role": "assistant", "content": reading.text},
        {"role": "tool", "tool_call_id": first, "content": "wet"},
    )
    assert answered.text == "Rain."


async def test_arguments_that_are_not_json_come_verbatim(client: AsyncOpenAI) -> None:
    assert (await read(client, "invalid")).calls[0][1:] == ("look", '{"city": ')


async def test_reasoning_and_further_keys_come_beside_the_text(client: AsyncOpenAI) -> None:
    reading = await read(client, "think")
    assert reading.joined("reasoning_content") == "six times seven"
    assert reading.joined("signature") == "abc"
    assert reading.text == "42"


async def test_a_refusal_is_none_of_the_text(client: AsyncOpenAI) -> None:
    reading = await read(client, "harm")
    assert (reading.joined("refusal"), reading.text) == ("I can not do that.", "")


async def test_without_stream_the_reply_is_one_object(server: ModelServer, client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "weather"}])
    message = answer.choices[0].message
    assert message.content == "Looking."
    assert [call.function.name for call in message.tool_calls or () if call.type == "function"] == ["look", "pay"]
    assert [call.id for call in message.tool_calls or ()] == [call[0] for call in (await read(client, "weather")).calls]
    assert answer.choices[0].finish_reason == "tool_calls"
    await until(lambda: server.finished == 2, "both replies' ends in the log")


async def test_fifty_streams_at_once_all_come_whole(server: ModelServer, client: AsyncOpenAI) -> None:
    server.pace(token_seconds=LONG)
    readings = [Reading(client, "tell") for _ in range(50)]
    await until(lambda: server.status()["chunks"] == [1] * 50, "all fifty in the middle of their reply")
    server.pace()
    await asyncio.gather(*(reading.task for reading in readings))
    assert {reading.text for reading in readings} == {STORY}
    await until(lambda: server.status()["streaming"] == 0, "the end of all")
    assert (len(server.requests), server.finished) == (50, 50)


def test_a_stream_is_events_in_chunks_and_ends_with_done(server: ModelServer) -> None:
    with raw_request(server.port, "tell") as connection:
        response = connection.getresponse()
        assert response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        assert response.getheader("Transfer-Encoding") == "chunked"
        events = response.read().decode().split("\n\n")
        connection.request("GET", "/v1/models")
        assert json.load(connection.getresponse())["data"][0]["object"] == "model"
    assert events[-2:] == ["data: [DONE]", ""]
    expected = chunks(SCRIPT[0].replies[0], Place("tell", 0), model="m")
    assert [json.loads(event.removeprefix("data: ")) for event in events[:-2]] == expected


# -- failures


async def test_it_is_unavailable_twice_and_then_answers(server: ModelServer, client: AsyncOpenAI) -> None:
    for _ in range(2):
        with pytest.raises(openai.InternalServerError) as failure:
            await read(client, "busy")
        assert failure.value.status_code == 503
    assert (await read(client, "busy")).text == "at last"
    assert (await read(client, "busy")).text == "at last"
    assert len(server.requests) == 4


async def test_what_it_failed_is_counted_over_its_death(server: ModelServer, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        await read(client, "busy")
    server.kill()
    server.start()
    with pytest.raises(openai.InternalServerError):
        await read(client, "busy")
    assert (await read(client, "busy")).text == "at last"


async def test_a_failure_without_times_is_one_for_ever(client: AsyncOpenAI) -> None:
    for _ in range(3):
        with pytest.raises(openai.BadRequestError, match="the script fails this request"):
            await read(client, "too much")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (["unheard of"], "no exchange for the user text 'unheard of'"),
        (["tell", {"role": "assistant", "content": STORY}], "reply 2 is wanted"),
    ],
)
async def test_what_is_not_in_the_script_is_a_bad_request(client: AsyncOpenAI, messages: list[Any], why: str) -> None:
    with pytest.raises(openai.BadRequestError, match=why):
        await read(client, *messages)


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}"])
def test_a_body_that_is_no_request_is_a_bad_one(server: ModelServer, body: bytes) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/chat/completions", body)
        response = connection.getresponse()
        assert response.status == 400
        assert json.load(response)["error"]["type"] == "invalid_request_error"
    assert get(server.port, "/nowhere")[0] == 404


async def test_a_stream_breaks_after_its_chunks_and_comes_whole_the_next_time(
    server: ModelServer, client: AsyncOpenAI
) -> None:
    broken = Reading(client, "break")
    with pytest.raises(openai.APIConnectionError):
        await broken.task
    assert len(broken.chunks) == 5
    whole = await read(client, "break")
    assert whole.chunks[:5] == broken.chunks
    assert whole.text == STORY
    await until(lambda: server.finished == 1, "the one whole reply")


@pytest.mark.parametrize("stream", [True, False])
def test_a_break_is_a_reset(server: ModelServer, stream: bool) -> None:
    with raw_request(server.port, "break", stream=stream) as connection, pytest.raises(ConnectionResetError):
        connection.getresponse().read()


# -- watching


async def test_a_request_is_in_the_log_before_its_reply(server: ModelServer, client: AsyncOpenAI) -> None:
    server.pace(first_token_seconds=LONG)
    reading = Reading(client, "tell", temperature=0.5)
    await until(lambda: server.requests, "the request in the log")
    assert server.requests == [
        {"model": "m", "messages": [{"role": "user", "content": "tell"}], "stream": True, "temperature": 0.5}
    ]
    assert reading.chunks == []
    server.pace()
    await reading.task
    with raw_request(server.port, "busy") as connection:
        connection.getresponse()
        assert len(server.requests) == 2


async def test_a_slow_reply_is_seen_until_its_end(server: ModelServer, client: AsyncOpenAI) -> None:
    reading = Reading(client, "slow")
    await until(lambda: server.status()["chunks"] == [1], "a reply in its middle")
    assert server.status() == {"streaming": 1, "answered": 0, "requests": 1, "users": ["slow"], "chunks": [1]}
    server.pace(token_seconds=0)
    await reading.task
    assert reading.text == STORY
    await until(lambda: server.status()["answered"] == 1, "the reply counted as answered")
    assert server.status()["streaming"] == 0


async def test_a_reply_whose_client_has_gone_is_under_way_no_more(server: ModelServer, client: AsyncOpenAI) -> None:
    reading = Reading(client, "slow")
    await until(lambda: server.status()["chunks"] == [1], "a reply in its middle")
    reading.task.cancel()
    await asyncio.gather(reading.task, return_exceptions=True)
    await until(lambda: server.status()["streaming"] == 0, "the server's noticing it")
    assert server.finished == 0


async def test_a_pace_is_no_number_of_a_negative_kind(server: ModelServer) -> None:
    with pytest.raises(OSError, match="400"):
        server.pace(token_seconds=-1)


# -- dying


async def test_killed_in_the_middle_it_gives_the_same_reply_again(server: ModelServer, client: AsyncOpenAI) -> None:
    server.pace(token_seconds=LONG)
    cut = Reading(client, "weather")
    await until(lambda: cut.chunks, "the beginning of the reply")
    killed, base_url = server.pid, server.base_url
    server.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(killed, 0)
    with pytest.raises(openai.APIConnectionError):
        await cut.task
    with pytest.raises(openai.APIConnectionError):
        await read(client, "weather")

    server.pace()
    server.start()
    assert (server.base_url, server.pid != killed) == (base_url, True)
    again, third = await read(client, "weather"), await read(client, "weather")
    assert again.chunks[: len(cut.chunks)] == cut.chunks
    assert again.chunks == third.chunks
    assert len(server.requests) == 3
    await until(lambda: server.status()["answered"] == 2, "both whole replies")
    assert server.finished == 2


async def test_its_pace_holds_over_a_kill(server: ModelServer, client: AsyncOpenAI) -> None:
    server.pace(token_seconds=0)
    server.kill()
    server.start()
    assert (await read(client, "slow")).text == STORY


async def test_killed_again_and_again_it_comes_back_on_its_port(server: ModelServer, client: AsyncOpenAI) -> None:
    for number in range(5):
        reading = Reading(client, "slow")
        await until(lambda: server.status()["chunks"] == [1], "a reply in its middle")
        server.kill()
        with pytest.raises(openai.APIConnectionError):
            await reading.task
        server.start()
        assert len(server.requests) == number + 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the port of a dead server is free for anybody")
def test_nobody_is_given_its_port_while_it_is_dead(server: ModelServer) -> None:
    server.kill()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", server.port))


def test_what_it_logged_can_be_asked_for_after_its_end() -> None:
    with ModelServer(SCRIPT, first_token_seconds=0) as server:
        with raw_request(server.port, "tell", stream=False) as connection:
            connection.getresponse().read()
        port = server.port
    assert refuses(port)
    assert len(server.requests) == 1
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.pid


def test_it_starts_once_and_not_on_a_port_that_is_taken(server: ModelServer) -> None:
    with pytest.raises(RuntimeError, match="is running"):
        server.start()
    with pytest.raises((OSError, RuntimeError)):
        ModelServer(SCRIPT, port=server.port).start()
    assert get(server.port, "/status")[0] == 200


async def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        f"import sys, tempfile; tempfile.tempdir = {str(tmp_path)!r}; from turnkeep.testing import *\n"
        f"server = ModelServer([Exchange('slow', [Reply('a b', token_seconds={LONG})])]); server.start()\n"
        "print(server.port, flush=True); sys.stdin.read()"
    )
    parent, port = _started([sys.executable, "-c", code], int)
    with parent, raw_request(port, "slow") as connection:
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        parent.send_signal(signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            response.read()
    await until(lambda: refuses(port), "the end of the process")


async def test_it_says_nothing_about_clients_that_go_away(tmp_path: Path) -> None:
    script, log, errors = (tmp_path / name for name in ("script.json", "log.jsonl", "stderr"))
    script.write_text(dump(SCRIPT))
    command = [sys.executable, "-m", "turnkeep.testing.model_server", "--script", str(script), "--log", str(log)]
    process, port = _started(command, lambda line: json.loads(line)["port"], errors)
    with process:
        for linger in (struct.pack("ii", 0, 0), struct.pack("ii", 1, 0)):
            with raw_request(port, "slow") as connection:
                await until(lambda: get(port, "/status")[1]["chunks"] == [1], "a reply in its middle")
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await until(lambda: get(port, "/status")[1]["streaming"] == 0, "the server's noticing")
    assert process.returncode == 0
    assert errors.read_text() == ""


def _started(command: list[str], port: Any, errors: Path | None = None) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that ends when its input does. Returns it and the port it says."""
    stderr = None if errors is None else os.open(errors, os.O_WRONLY | os.O_CREAT)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    if stderr is not None:
        os.close(stderr)
    assert process.stdout is not None
    return process, port(process.stdout.readline())
