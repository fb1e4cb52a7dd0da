"""`turnkeep run`: a conversation in a terminal or through pipes, killed and gone on with."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

import turnkeep
from tests.acceptance.agent_processes import Running, Terminal, app_in
from tests.acceptance.command_line import run
from tests.observing import until
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

WORDS = [f"word{number}" for number in range(40)]
STORY = " ".join(WORDS)
LONG = 3_600.0  # seconds of silence, which no test waits for

SCRIPT = [
    Exchange("hello", [Reply("Hello!\nHow are you?")]),
    Exchange("order", [Reply("Let me look.", [ToolCall("find_order", {"order": 7})]), Reply("On Monday.")]),
    Exchange("story", [Reply(STORY)]),
    Exchange("bad", [Reply("at last", status=400, times=1)]),
    Exchange("break", [Reply(STORY, break_after=5, times=1)]),
    Exchange("busy", [Reply("at last", status=503, times=2)]),
    Exchange("refuse", [Reply(refusal="I can not.")]),
    Exchange(
        "hostile", [Reply("\x1b[2Jred \x9b31m \u202eexe", [ToolCall("find_order", '{"\x1b[2J": 1}')]), Reply("-")]
    ),
    Exchange("hang", [Reply(tool_calls=[ToolCall("hang")])]),
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
def pipe(place: Path, dsn: str) -> Iterator[Callable[..., Running]]:
    """Start the command with lines on its stdin."""
    started: list[Running] = []

    def start(lines: str, *arguments: str) -> Running:
        started.append(Running(place, "run", "app:support", *arguments, dsn=dsn, stdin=lines.encode()))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def sit_down(place: Path, dsn: str) -> Iterator[Callable[..., Terminal]]:
    """Start the command in a terminal."""
    started: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        started.append(Terminal(place, "run", "app:support", *arguments, dsn=dsn))
        return started[-1]

    yield start
    for one in started:
        one.__exit__(None, None, None)


async def streaming(model: ModelServer, chunks: int) -> None:
    """Wait until so much of a reply is under way."""
    await until(lambda: max(model.status()["chunks"], default=0) >= chunks, "a reply under way")


# -- through pipes


async def test_each_line_is_answered_on_stdout(pipe: Callable[..., Running]) -> None:
    talk = pipe("hello\n\n  \norder\nbusy\nrefuse", "t")
    assert await talk.end() == 0
    assert talk.out == "Hello!\nHow are you?\nOn Monday.\nat last\nI can not.\n"
    assert "new conversation t" in talk.err
    assert '· find_order {"order":7}' in talk.err
    assert "  → order 7 was shipped on Monday" in talk.err
    assert talk.err.count("waiting for the model server") == 1

    again = pipe("hello\n", "@last", "--quiet")
    assert await again.end() == 0
    assert (again.out, again.err) == ("Hello!\nHow are you?\n", "")


async def test_a_reply_that_broke_off_is_printed_once(pipe: Callable[..., Running]) -> None:
    talk = pipe("break\n")
    assert await talk.end() == 0
    assert talk.out == STORY + "\n"
    assert "asking again" in talk.err


async def test_json_is_one_object_a_reply(dsn: str, pipe: Callable[..., Running]) -> None:
    talk = pipe("order\nhello\n", "t", "--json", "--quiet")
    assert await talk.end() == 0
    assert talk.err == ""
    first, second = map(json.loads, talk.out.splitlines())
    assert first.pop("message")["content"] == "On Monday."
    assert set(first) == {"conversation_id", "branch", "key", "repeated", "turn_index", "sub_step"}
    assert (second["turn_index"], second["message"]["content"]) == (1, "Hello!\nHow are you?")
    assert json.loads(run("show", "t", "--json", dsn=dsn).out)["messages"][-1] == second["message"]


async def test_what_was_killed_in_the_middle_is_gone_on_with(
    store: turnkeep.AsyncStore,
    model: ModelServer,
    pipe: Callable[..., Running],
    advance: Callable[[timedelta], None],
) -> None:
    model.pace(token_seconds=LONG)
    first = pipe("story\nhello\n", "t")
    await streaming(model, 1)
    first.kill()
    model.pace()
    again = pipe("order\n", "t")
    await again.says("was left open at step 0")
    await again.says(f":{first.process.pid}, ")  # holds the lease
    advance(timedelta(minutes=1))
    assert await again.end() == 0
    assert again.out == "On Monday.\n"
    assert STORY in again.err
    said = [message["content"] for message in (await store.restore("t")).messages if message["role"] != "tool"]
    assert said == ["story", STORY, "order", "Let me look.", "On Monday."]


async def test_it_goes_on_when_it_has_lost_its_lease(
    model: ModelServer, pipe: Callable[..., Running], dsn: str
) -> None:
    model.pace(token_seconds=LONG)
    talk = pipe("story\n", "t", "--lease", "2")
    await streaming(model, 1)
    with psycopg.connect(dsn, autocommit=True) as thief:
        thief.execute("UPDATE turnkeep.branch SET lease_token = 1, lease_until = now()")
    await talk.says("the lease was lost")
    model.pace()
    assert await talk.end() == 0
    assert talk.out == STORY + "\n"


async def test_a_turn_that_fails_ends_it_and_is_tried_again(pipe: Callable[..., Running]) -> None:
    failed = pipe("bad\nhello\n", "t")
    assert await failed.end() == 1
    assert failed.out == ""
    assert "HTTP 400" in failed.err
    assert "turnkeep run app:support t" in failed.err
    again = pipe("hello\n", "t")
    assert await again.end() == 0
    assert again.out == "Hello!\nHow are you?\n"
    assert "had failed; trying again" in again.err


def test_it_answers_only_its_own_agents_conversations(dsn: str, place: Path) -> None:
    assert run("post", "t", "hello", "--agent", "sales", dsn=dsn).code == 0
    other = run("run", "app:support", "t", dsn=dsn)
    assert (other.code, other.out) == (2, "")
    assert "'sales'" in other.err
    several = run("run", "app:agents", dsn=dsn)
    assert several.code == 2
    assert "--agent" in several.err
    assert run("run", "app:agents", "--agent", "nobody", dsn=dsn).code == 2
    assert run("run", "app:agents", "--agent", "sales", "@last", dsn=dsn).code == 0


def test_a_conversation_without_a_message_is_not_made(dsn: str, place: Path) -> None:
    empty = run("run", "app:support", "it's new", dsn=dsn)
    assert (empty.code, empty.out) == (0, "")
    assert "new conversation it's new" in empty.err
    assert run("ls", "--json", dsn=dsn).out == ""


# -- in a terminal


async def test_a_reply_is_shown_as_it_comes(model: ModelServer, sit_down: Callable[..., Terminal]) -> None:
    terminal = sit_down()
    await terminal.shows("> ")
    assert "new conversation chat-" in terminal.shown
    assert "Ctrl-D ends" in terminal.shown
    model.pace(token_seconds=1)
    terminal.type("story\n")
    await terminal.shows(WORDS[1])
    model.pace(token_seconds=LONG)
    assert model.status()["streaming"] == 1
    assert WORDS[-1] not in terminal.shown
    model.pace()
    await terminal.shows(f"{WORDS[-1]}\n\n> ")
    assert STORY in terminal.shown
    terminal.type("order\n")
    await terminal.shows("On Monday.\n\n> ")
    assert "Let me look.\n" in terminal.shown
    assert '· find_order {"order":7}' in terminal.shown
    terminal.type("\x04")
    assert await terminal.end() == 0
    assert "Go on with: turnkeep run app:support chat-" in terminal.shown


async def test_ctrl_c_stops_a_reply_and_hands_it_back(
    store: turnkeep.AsyncStore, model: ModelServer, sit_down: Callable[..., Terminal]
) -> None:
    model.pace(token_seconds=LONG)
    terminal = sit_down("it's mine", "--lease", "3600")
    await terminal.shows("> ")
    terminal.type("story\n")
    await streaming(model, 1)
    terminal.type("\x03")
    assert await terminal.end() == 130
    assert "Go on with: turnkeep run app:support 'it'\"'\"'s mine'" in terminal.shown
    handed_back = await store.restore("it's mine")
    assert (handed_back.status, handed_back.turn_open, handed_back.lease_owner) == ("ready", True, None)

    model.pace()
    again = sit_down("it's mine")
    await again.shows("was left open")
    await again.shows(f"{STORY}\n\n> ")
    assert "> story\n" in again.shown
    again.type("\x03")
    assert await again.end() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=str)
async def test_a_signal_hands_a_reply_back(
    store: turnkeep.AsyncStore, model: ModelServer, pipe: Callable[..., Running], number: signal.Signals
) -> None:
    model.pace(token_seconds=LONG)
    talk = pipe("story\n", "t")
    await streaming(model, 1)
    talk.send(number)
    assert await talk.end() == 130
    assert (await store.restore("t")).status == "ready"


async def test_a_second_ctrl_c_ends_it_at_once(
    store: turnkeep.AsyncStore, model: ModelServer, sit_down: Callable[..., Terminal]
) -> None:
    terminal = sit_down("t")
    await terminal.shows("> ")
    terminal.type("hang\n")
    await terminal.shows("· hang")
    terminal.type("\x03")
    await terminal.shows("^C")

    async def press_again() -> None:
        while True:  # two that come before the first is looked at are one to the program
            terminal.type("\x03")
            await asyncio.sleep(1)

    pressing = asyncio.create_task(press_again())
    assert await terminal.end() == 130
    pressing.cancel()
    assert (await store.restore("t")).status == "running"


async def test_a_reply_made_again_after_the_model_server_was_lost_is_marked(
    model: ModelServer, sit_down: Callable[..., Terminal]
) -> None:
    terminal = sit_down()
    await terminal.shows("> ")
    model.pace(token_seconds=1)
    terminal.type("story\n")
    await terminal.shows(WORDS[1])
    model.kill()
    await terminal.shows("asking again")
    model.pace()
    model.start()
    await terminal.shows(f"asking again\n{STORY}\n\n> ")
    assert terminal.shown.count("the model server") == 1


async def test_a_turn_that_failed_is_tried_again_before_the_next_message(sit_down: Callable[..., Terminal]) -> None:
    terminal = sit_down()
    await terminal.shows("> ")
    terminal.type("bad\n")
    await terminal.shows("HTTP 400")
    terminal.type("hello\n")
    await terminal.shows("at last\nHello!\nHow are you?\n\n> ")


async def test_what_a_worker_answers_is_shown_too(
    dsn: str, model: ModelServer, place: Path, sit_down: Callable[..., Terminal]
) -> None:
    model.pace(token_seconds=LONG)
    with Running(place, "worker", "app:support", dsn=dsn) as worker:
        assert run("post", "t", "story", "--agent", "support", dsn=dsn).code == 0
        await streaming(model, 1)
        terminal = sit_down("t")
        await terminal.shows(f"waiting for {worker_name(worker)}")
        assert run("post", "t", "hello", dsn=dsn).code == 0
        model.pace()
        model.kill()
        model.start()
        await terminal.shows("> hello\nHello!\nHow are you?\n\n> ")
        assert STORY in terminal.shown


def worker_name(worker: Running) -> str:
    return worker.err.rpartition(" as ")[2].strip()


async def test_nothing_that_a_model_says_controls_the_terminal(sit_down: Callable[..., Terminal]) -> None:
    terminal = sit_down()
    await terminal.shows("> ")
    terminal.type("hostile\n")
    await terminal.shows("-\n\n> ")
    assert "\\x1b[2Jred \\x9b31m \\u202eexe" in terminal.shown
    for harmful in ("\x1b[2J", "\x9b", "\u202e"):
        assert harmful not in terminal.shown
