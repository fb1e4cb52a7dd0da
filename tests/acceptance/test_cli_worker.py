"""`turnkeep worker`, `post` and `resume` as processes: what is posted is answered, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

import turnkeep
from tests.acceptance.agent_processes import Running, app_in
from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN, lines, on_terminal, run
from tests.observing import until
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

STORY = " ".join(f"word{number}" for number in range(40))
LONG = 3_600.0  # seconds of silence, which no test waits for

SCRIPT = [
    Exchange("hello", [Reply("Hello!")]),
    Exchange("order", [Reply("Let me look.", [ToolCall("find_order", {"order": 7})]), Reply("On Monday.\nSure.\n")]),
    Exchange("story", [Reply(STORY)]),
    Exchange("slow", [Reply(STORY, token_seconds=LONG)]),
    Exchange("bad", [Reply("at last", status=400, times=1)]),
    Exchange("hang", [Reply(tool_calls=[ToolCall("hang")])]),
    Exchange("thread", [Reply(tool_calls=[ToolCall("hang_thread")])]),
    Exchange("refuse", [Reply(refusal="I can not.")]),
    Exchange("hostile", [Reply("\x1b[2J red")]),
]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(SCRIPT) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with app_in(tmp_path, model.base_url, monkeypatch) as path:
        yield path


@pytest.fixture
def work(place: Path, dsn: str) -> Iterator[Callable[..., Running]]:
    """Start a worker that ends with the test."""
    started: list[Running] = []

    def start(*arguments: str, app: str = "app:support") -> Running:
        started.append(Running(place, "worker", app, *arguments, dsn=dsn))
        return started[-1]

    yield start
    for one in started:
        one.kill()


async def streaming(model: ModelServer, chunks: int = 3) -> None:
    """Wait until a reply is under way."""
    await until(lambda: max(model.status()["chunks"], default=0) >= chunks, "a reply under way")


# -- what is posted is answered


async def test_a_worker_answers_what_is_posted(dsn: str, work: Callable[..., Running]) -> None:
    worker = work()
    await worker.says("serving support on the database ")
    assert f", 50 at a time, as {socket.gethostname()}:{worker.process.pid}\n" in worker.err
    assert "password" not in worker.err

    answered = run("post", "ticket-42", "order", "--agent", "support", "--key", "k1", "--wait", dsn=dsn)
    assert (answered.code, answered.out) == (0, "On Monday.\nSure.\n\n")
    assert "k1" in answered.err

    (again,) = lines(run("post", "ticket-42", "order", "--key", "k1", "--wait", "--json", dsn=dsn))
    assert again.pop("message")["content"] == "On Monday.\nSure.\n"
    assert again == {
        "conversation_id": str(turnkeep.conversation_uuid("ticket-42")),
        "branch": 0,
        "key": "k1",
        "repeated": True,
        "turn_index": 0,
        "sub_step": 3,
    }
    assert run("post", "@last", "refuse", "--wait", "--quiet", dsn=dsn).out == "I can not.\n"
    assert run("post", "@last", "hostile", "--wait", dsn=dsn).out == "\x1b[2J red\n"
    assert "\x1b[2J" not in on_terminal("post", "@last", "hostile", "--wait", dsn=dsn)


async def test_a_worker_killed_in_the_middle_of_a_reply_loses_nothing(
    dsn: str, model: ModelServer, work: Callable[..., Running], advance: Callable[[timedelta], None], place: Path
) -> None:
    model.pace(token_seconds=LONG)
    first = work()
    with Running(place, "post", "t", "story", "--agent", "support", "--wait", dsn=dsn) as waiting:
        await streaming(model, 1)
        first.kill()
        model.pace()
        second = work()
        await second.says("serving")
        advance(timedelta(minutes=1))
        assert await waiting.end() == 0
        assert waiting.out == STORY + "\n"
    assert f"is taken over: the lease of {socket.gethostname()}:{first.process.pid} had expired" in second.err
    assert len(model.requests) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
async def test_a_worker_told_to_stop_hands_back_and_another_goes_on_at_once(
    dsn: str, store: turnkeep.AsyncStore, model: ModelServer, work: Callable[..., Running], number: signal.Signals
) -> None:
    model.pace(token_seconds=LONG)
    posted = await store.post("t", "story", agent_id="support")
    first = work("--lease", "3600")
    await streaming(model, 1)
    first.send(number)
    assert await first.end() == 0
    assert "stopping" in first.err
    assert "Traceback" not in first.err
    handed_back = await store.restore("t")
    assert (handed_back.status, handed_back.turn_open, handed_back.lease_owner) == ("ready", True, None)

    model.pace()
    work("--lease", "3600")
    reply = await store.wait_reply("t", posted.key, seconds=PATIENCE)
    assert reply.content == STORY


async def test_a_second_signal_ends_a_worker_at_once(
    store: turnkeep.AsyncStore, model: ModelServer, work: Callable[..., Running]
) -> None:
    await store.post("t", "hang", agent_id="support")
    worker = work("--grace", "3600")
    await until(lambda: model.status()["answered"] == 1, "the call of a tool")
    await _started(store)
    worker.send(signal.SIGTERM)
    await worker.says("stopping")
    worker.send(signal.SIGTERM)
    assert await worker.end() == 130
    assert (await store.restore("t")).status == "running"


def test_a_worker_whose_log_nobody_reads_any_more_stops_when_it_is_told_to(dsn: str, place: Path) -> None:
    ours, theirs = os.pipe()
    environment = {**PLAIN, "TURNKEEP_DATABASE_URL": dsn}
    process = subprocess.Popen([COMMAND, "worker", "app:support"], cwd=place, env=environment, stderr=theirs)
    os.close(theirs)
    try:
        assert b"serving" in os.read(ours, 10_000)
        os.close(ours)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()


async def test_a_tool_in_a_thread_does_not_keep_a_worker(
    store: turnkeep.AsyncStore, model: ModelServer, work: Callable[..., Running]
) -> None:
    await store.post("t", "thread", agent_id="support")
    worker = work("--grace", "0.1")
    await _started(store)
    worker.send(signal.SIGTERM)
    assert await worker.end() == 0
    assert (await store.restore("t")).status == "ready"


async def _started(store: turnkeep.AsyncStore) -> None:
    """Wait until a tool is about to run."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(turnkeep.NotFoundError):
                if any(call.attempts for call in (await store.restore("t")).pending):
                    return


async def test_drain_ends_when_nothing_is_left_to_do(
    dsn: str, store: turnkeep.AsyncStore, model: ModelServer, work: Callable[..., Running]
) -> None:
    posted = [await store.post(f"t{number}", "hello", agent_id="support") for number in range(20)]
    other = await store.post("other", "hello", agent_id="sales")
    assert await work("--drain", "--concurrency", "3").end() == 0
    for one in posted:
        assert (await store.wait_reply(one.conversation_id, one.key, seconds=0.001)).content == "Hello!"
    with pytest.raises(turnkeep.ReplyTimeoutError):
        await store.wait_reply("other", other.key, seconds=0.001)

    model.pace(first_token_seconds=LONG)
    interrupted = work("--drain", app="app:agents")
    await until(lambda: model.status()["streaming"] == 1, "a reply under way")
    interrupted.send(signal.SIGTERM)
    assert await interrupted.end() == 130


async def test_a_worker_logs_lines_or_objects(
    store: turnkeep.AsyncStore, model: ModelServer, work: Callable[..., Running]
) -> None:
    await store.post("t", "bad", agent_id="support")
    assert await work("--drain", "--quiet").end() == 0
    await store.resume("t")
    await store.post("slow", "slow", agent_id="support")
    worker = work("--json", "-v", "--concurrency", "1")
    await streaming(model, 1)
    worker.send(signal.SIGTERM)
    assert await worker.end() == 0
    told = [json.loads(line) for line in worker.err.splitlines()]
    assert told[0]["agents"] == ["support"]
    assert {"time", "level", "message"} <= set(told[0])
    assert any("handed back" in one["message"] and one["level"] == "INFO" for one in told)
    assert worker.out == ""


async def test_warnings_are_lines_with_a_time(store: turnkeep.AsyncStore, work: Callable[..., Running]) -> None:
    await store.post("t", "bad", agent_id="support")
    worker = work("--drain", "--quiet")
    assert await worker.end() == 0
    (line,) = worker.err.splitlines()
    assert line[2] == ":"
    assert "WARNING" in line
    assert "HTTP 400" in line


# -- post


def test_post_prints_the_key_and_makes_only_what_it_is_told_to_make(dsn: str) -> None:
    unknown = run("post", "t", "hello", dsn=dsn)
    assert (unknown.code, unknown.out) == (3, "")
    assert "--agent" in unknown.err
    posted = run("post", "t", "hello", "--agent", "support", dsn=dsn)
    assert (posted.code, uuid.UUID(posted.out.strip()).version) == (0, 4)
    assert run("post", "t", "hello", "--key", "k", "--quiet", dsn=dsn).err == ""
    (again,) = lines(run("post", "t", "hello", "--key", "k", "--json", dsn=dsn))
    assert (again["key"], again["repeated"], again["branch"]) == ("k", True, 0)
    other = run("post", "t", "goodbye", "--key", "k", "--json", dsn=dsn)
    assert (other.code, json.loads(other.err)["error"]) == (5, "KeyReusedError")
    assert run("post", "t:7", "hello", dsn=dsn).code == 3
    late = run("post", "t", "hello", "--within", "0.01", dsn=dsn)
    assert (late.code, late.out) == (4, "")


def test_the_id_of_a_new_conversation_is_never_taken_for_the_beginning_of_anothers(dsn: str) -> None:
    (first,) = lines(run("post", "first", "hello", "--agent", "support", "--json", dsn=dsn))
    prefix = first["conversation_id"][:8]
    (by_prefix,) = lines(run("post", prefix, "hello", "--json", dsn=dsn))
    assert by_prefix["conversation_id"] == first["conversation_id"]
    (new,) = lines(run("post", prefix, "hello", "--agent", "support", "--json", dsn=dsn))
    assert new["conversation_id"] == str(turnkeep.conversation_uuid(prefix))
    (now,) = lines(run("post", prefix, "hello", "--json", dsn=dsn))
    assert now["conversation_id"] == new["conversation_id"]
    (last,) = lines(run("post", "@last", "hello", "--agent", "support", "--json", dsn=dsn))
    assert last["conversation_id"] in (first["conversation_id"], new["conversation_id"])


async def test_post_reads_a_message_from_stdin(dsn: str, store: turnkeep.AsyncStore) -> None:
    def post(sent: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [COMMAND, "post", "t", "-", "--agent", "support"],
            env=PLAIN | {"TURNKEEP_DATABASE_URL": dsn},
            input=sent,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )

    assert post("two\nlines é\n".encode()).returncode == 0
    branch = await store.conversation("t")
    await branch.claim()
    await branch.take_request()
    assert branch.messages[0]["content"] == "two\nlines é"
    for wrong in (b"", b"\n", b"\xff"):
        refused = post(wrong)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert b"Traceback" not in refused.stderr


async def test_a_turn_that_fails_is_told_to_who_waits(
    dsn: str, store: turnkeep.AsyncStore, work: Callable[..., Running]
) -> None:
    work()
    failed = run("post", "t", "bad", "--agent", "support", "--key", "k", "--wait", dsn=dsn)
    assert (failed.code, failed.out) == (1, "")
    assert "HTTP 400" in failed.err
    assert "turnkeep resume" in failed.err
    assert run("resume", "t", dsn=dsn).code == 0
    again = run("post", "t", "bad", "--key", "k", "--wait", dsn=dsn)
    assert (again.code, again.out) == (0, "at last\n")


# -- resume


async def test_resume_gives_what_has_stopped_to_the_workers(dsn: str, store: turnkeep.AsyncStore) -> None:
    for name, agent in (("failed", "support"), ("running", "support"), ("open", "support"), ("sold", "sales")):
        branch = await store.conversation(name, agent_id=agent)
        if name != "open":
            await branch.claim(seconds=3600)
        await branch.begin_turn({"role": "user", "content": "hello"})
        if name in ("failed", "sold"):
            await branch.release(failure={"type": "x", "message": "y"})
    await store.conversation("idle")
    await store.post("new", "hello", agent_id="support")

    held = run("resume", "running", dsn=dsn)
    assert (held.code, held.out) == (5, "")
    (idle,) = lines(run("resume", "idle", "--json", dsn=dsn))
    assert (idle["resumed"], idle["status"]) == (False, "idle")
    assert "nothing" in run("resume", "idle", dsn=dsn).out
    (forked,) = lines(run("resume", "@last:0", "--json", dsn=dsn))
    assert forked["external_id"] == "new"

    found = lines(run("resume", "--all", "--agent", "support", "--json", dsn=dsn))
    assert {one["external_id"]: (one["status"], one["resumed"]) for one in found} == {
        "open": ("open", True),
        "failed": ("failed", True),
    }
    again = lines(run("resume", "--all", "--agent", "support", "--json", dsn=dsn))
    assert {one["external_id"]: (one["resumed"], one["outcome"]) for one in again} == {
        "open": (False, "with the workers"),
        "failed": (False, "with the workers"),
    }
    everyone = run("resume", "--all", dsn=dsn)
    assert "sold" in everyone.out
    assert "1 branch resumed" in everyone.err
    assert (await store.restore("sold")).status == "ready"
    nobody = run("resume", "--all", "--agent", "nobody", dsn=dsn)
    assert (nobody.code, nobody.out) == (0, "")
    assert run("resume", "idle", "--quiet", dsn=dsn).out == ""


# -- errors


@pytest.mark.parametrize(
    "arguments",
    [
        ("worker",),
        ("worker", "app:support", "app:support", "--lease", "0"),
        ("worker", "app:support", "--poll", "nan"),
        ("worker", "app:support", "--concurrency", "0"),
        ("post",),
        ("post", "t"),
        ("post", "t", ""),
        ("post", "t", "hello", "--within", "-1"),
        ("resume",),
        ("resume", "t", "--all"),
        ("resume", "t", "--agent", "support"),
        ("run",),
        ("run", "app:support", "t", "--lease", "nan"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("place")
def test_wrong_usage_is_2(arguments: tuple[str, ...], dsn: str) -> None:
    ran = run(*arguments, dsn=dsn)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


@pytest.mark.parametrize(
    ("app", "text", "said"),
    [
        ("nosuch:agent", "", "nosuch"),
        ("mine:agent", "other = 1", "mine.agent"),
        ("mine", "agent = 3", "mine.agent"),
        ("mine", "agent = []", "mine.agent"),
        ("mine:", "\nagent = 1 / 0", "mine.py:2"),
        ("mine", "def f():\n    raise KeyError('no')\n\nf()", "mine.py:4 → "),
        ("mine", "x = (", "SyntaxError"),
        ("mine", "import nothere", "nothere"),
        ("mine", "import sys; sys.exit(0)", "SystemExit"),
        ("mine", "import turnkeep; agent = turnkeep.Agent('', 'm')", "name: 0 characters"),
        ("mine", "import turnkeep; agent = turnkeep.Agent('a', 'm', base_url='ftp://x')", "ftp://x"),
        ("mine", "import turnkeep; agent = [turnkeep.Agent('a', 'm'), turnkeep.Agent('a', 'm')]", "same name"),
        (".mine", "", "module:attribute"),
        (":", "", "module:attribute"),
        ("mine.py", "", "module:attribute"),
    ],
)
def test_an_app_that_can_not_be_used_is_told_in_words(dsn: str, place: Path, app: str, text: str, said: str) -> None:
    (place / "mine.py").write_text(text)
    ran = run("worker", app, "--json", dsn=dsn)
    assert (ran.code, ran.out) == (2, "")
    assert said in json.loads(ran.err.splitlines()[-1])["message"]


@pytest.mark.parametrize("command", ["worker", "run"])
def test_a_missing_model_client_is_told_before_anything_is_claimed(dsn: str, place: Path, command: str) -> None:
    (place / "openai.py").write_text("raise ImportError")
    ran = run(command, "app:support", dsn=dsn)
    assert ran.code == 2
    assert "pip install 'turnkeep[openai]'" in ran.err


@pytest.mark.parametrize(
    "command", [("worker", "app:support"), ("post", "t", "m"), ("resume", "t"), ("run", "app:support")]
)
@pytest.mark.usefixtures("place")
def test_an_unreachable_database_is_7(command: tuple[str, ...]) -> None:
    ran = run(*command, "--dsn", "postgresql://nobody:secret@127.0.0.1:1/x")
    assert (ran.code, ran.out) == (7, "")
    assert "secret" not in ran.err
