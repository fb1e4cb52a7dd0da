"""Every effect of the turn loop, the process killed right before and right after it (G1, G4, G6, G7).

A worker dies by SIGKILL, another one goes on from what the database holds; then the transcript is that of the run that
never crashed, each request has one answer, and what tools did in the world was done as their policies say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

import turnkeep
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.runner.transcript import UNKNOWN_OUTCOME, request_messages
from turnkeep.testing import CrashPoint, Exchange, FakeClock, ModelServer, Reply, ToolCall, WorkerProcesses

LEASE = 30.0
PARALLEL = (
    ToolCall("look_up", {"query": "weather"}),
    ToolCall("send_mail", {"to": "bob"}),
    ToolCall("refund", {"order": "7", "cents": 5}),
)
SCRIPT = [
    Exchange("thanks", [Reply(content="You are welcome.")]),
    Exchange("one tool", [Reply(tool_calls=[PARALLEL[0]]), Reply(content="Sunny.")]),
    Exchange("three tools", [Reply(content="A moment.", tool_calls=PARALLEL), Reply(content="All done.")]),
    Exchange(
        "refund twice",
        [Reply(tool_calls=[PARALLEL[2]]), Reply(tool_calls=[PARALLEL[2]]), Reply(content="Both are refunded.")],
    ),
    Exchange(
        "invalid arguments",
        [
            Reply(tool_calls=[ToolCall("refund", '{"order": "7", "cen'), PARALLEL[1]]),
            Reply(tool_calls=[ToolCall("refund", {"order": "7", "cents": "many"})]),
            Reply(tool_calls=[PARALLEL[2]]),
            Reply(content="Refunded at last."),
        ],
    ),
]
CONVERSATIONS = {
    "no tool": ["thanks"],
    "one tool": ["one tool", "thanks"],
    "three parallel tools": ["three tools", "thanks"],
    "a transactional tool": ["refund twice"],
    "invalid arguments": ["invalid arguments", "thanks"],
}
SIDES: list[Literal["before", "after"]] = ["before", "after"]


@dataclass
class Scene:
    """A database, a model server, the outside world, and processes that work."""

    dsn: str
    workers: WorkerProcesses
    clock: FakeClock
    world: Path

    def run(self, crash: CrashPoint | None = None) -> tuple[str, ...]:
        """Let a worker work; with a crash point, see that it dies there and that its lease ends."""
        done = self.workers.run(self.dsn, crash=crash)
        assert done.killed == (crash is not None)
        if crash is not None:
            self.clock.advance(LEASE + 1)
        return done.effects

    async def post(self, name: str, messages: list[str]) -> None:
        async with turnkeep.open(self.dsn) as store:
            for number, message in enumerate(messages):
                await store.post(name, message, key=f"{number}", agent_id="support")

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def did(self) -> Counter[str]:
        """What tools did outside the database, and how often: one entry a call."""
        return Counter(self.world.read_text().split("\n")[:-1] if self.world.exists() else [])

    def refunds(self) -> Counter[str]:
        """What the transactional tool did, and how often."""
        return Counter(key for (key,) in self.rows("SELECT key FROM public.refund"))


@pytest.fixture
def scene(dsn: str, server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.refund (key text, cents int)")
    with ModelServer(SCRIPT) as model:
        monkeypatch.setenv("MODEL_URL", model.base_url)
        monkeypatch.setenv("WORLD", str(tmp_path / "world"))
        with WorkerProcesses("tests.crash.crash_app", lease_seconds=LEASE) as workers:
            yield Scene(dsn, workers, FakeClock(dsn), tmp_path / "world")


async def restored(scene: Scene, name: str, branch: int | None = None) -> turnkeep.Checkpoint:
    async with turnkeep.open(scene.dsn) as store:
        return await store.restore(name, branch=branch)


def transcript(checkpoint: turnkeep.Checkpoint) -> list[dict[str, Any]]:
    """A conversation as a model would be shown it: in call order, without timestamps."""
    return request_messages(None, checkpoint.messages)


async def check_answered_once(scene: Scene, name: str, messages: list[str]) -> None:
    async with turnkeep.open(scene.dsn) as store:
        for number in range(len(messages)):
            reply = await store.wait_reply(name, f"{number}", seconds=60)
            assert reply.checkpoint.turn_index == number
        inputs = [one for one in await store.history(name, limit=1000) if one.phase == "input"]
        head = await store.restore(name)
    assert len(inputs) == len(messages)
    assert (head.status, head.lease_owner, head.pending) == ("idle", None, ())
    said = [message["content"] for message in head.messages if message["role"] == "user"]
    assert said == messages


def check_equal(crashed: list[dict[str, Any]], whole: list[dict[str, Any]], started: bool) -> None:
    """The same, call by call; but the outcome of a mail that a dead process had begun to send may be unknown."""
    assert len(crashed) == len(whole)
    for one, other in zip(crashed, whole, strict=True):
        if one != other:
            assert (one["content"], json.loads(other["content"])) == (UNKNOWN_OUTCOME, {"sent": "bob"})
            assert started


@pytest.mark.parametrize("conversation", CONVERSATIONS)
async def test_a_crash_at_every_effect_changes_nothing(scene: Scene, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    await scene.post("whole", messages)
    effects = scene.run()
    whole = transcript(await restored(scene, "whole"))
    assert len(effects) >= 3
    for number, when in [(number, when) for number in range(1, len(effects) + 1) for when in SIDES]:
        name = f"{number} {when}"
        before = scene.did(), scene.refunds()
        await scene.post(name, messages)
        scene.run(CrashPoint(number, when))
        scene.run()
        await check_answered_once(scene, name, messages)
        started = "SaveStarted" in effects[:number]
        check_equal(transcript(await restored(scene, name)), whole, started)
        did, refunds = scene.did() - before[0], scene.refunds() - before[1]
        assert all(times == 1 for line, times in did.items() if line.startswith("send_mail")), name
        assert all(times <= 2 for times in did.values()), name
        assert set(refunds.values()) <= {1}, name
        given = Counter(message["content"] for message in whole if message["role"] == "tool")
        assert len(refunds) == given["5 cents for order 7"]
        # A call has the same key however often it is run.
        assert sum(line.startswith("look_up") for line in did) == given["found weather"], name


async def test_durability_order_no_checkpoint_claims_what_is_not_there(scene: Scene) -> None:
    await scene.post("whole", ["three tools"])
    effects = scene.run()
    for number, when in [(number, when) for number in range(2, len(effects) + 1) for when in SIDES]:
        name = f"{number} {when}"
        await scene.post(name, ["three tools"])
        scene.run(CrashPoint(number, when))
        async with turnkeep.open(scene.dsn) as store:
            for one in await store.history(name):
                checkpoint = await store.restore(name, at=(one.turn_index, one.sub_step))
                roles = Counter(message["role"] for message in checkpoint.messages)
                called = sum(len(m["metadata"].get("tool_calls", ())) for m in checkpoint.messages)
                assert roles["tool"] + len(checkpoint.pending) == called
                assert checkpoint.turn_open or roles["assistant"] == 2
        scene.run()


async def test_a_fork_in_the_middle_of_a_turn_makes_no_new_effect(scene: Scene) -> None:
    await scene.post("whole", ["three tools"])
    effects = scene.run()
    for number, when in [(number, when) for number in range(2, len(effects) + 1) for when in SIDES]:
        name = f"{number} {when}"
        before = scene.did(), scene.refunds()
        await scene.post(name, ["three tools"])
        scene.run(CrashPoint(number, when))
        async with turnkeep.open(scene.dsn) as store:
            if (await store.restore(name)).turn_index < 0:
                scene.run()
                continue  # there was nothing to fork yet
            fork = await store.fork(name)
            await store.resume(name, branch=fork.branch)
        scene.run()
        did, refunds = scene.did() - before[0], scene.refunds() - before[1]
        heads = [await restored(scene, name, branch) for branch in (0, fork.branch)]
        assert all((head.status, head.pending, head.turn_open) == ("idle", (), False) for head in heads)
        for head in heads:
            shown = transcript(head)
            assert [one["role"] for one in shown] == ["user", "assistant", *["tool"] * 3, "assistant"]
        assert all(times == 1 for line, times in did.items() if line.startswith("send_mail")), name
        assert set(refunds.values()) <= {1}, name


async def test_many_conversations_survive_worker_after_worker(scene: Scene) -> None:
    names = [f"{conversation} {number}" for conversation in CONVERSATIONS for number in range(4)]
    for name in names:
        await scene.post(name, CONVERSATIONS[name.rsplit(" ", 1)[0]])
    for number in (59, 83, 71):
        scene.run(CrashPoint(number, "after"))
    scene.run()
    for name in names:
        await check_answered_once(scene, name, CONVERSATIONS[name.rsplit(" ", 1)[0]])
    assert set(scene.refunds().values()) == {1}
    assert all(times == 1 for line, times in scene.did().items() if line.startswith("send_mail"))
