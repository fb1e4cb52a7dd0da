"""What the runner adds to its saves, and how long the conversations of a killed worker stand still."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
import uuid
from typing import Any, cast

import psycopg

import turnkeep
from bench.agent import CONVERSATIONS, LEASE, agent
from bench.scene import Finding, interleaved, milliseconds
from turnkeep.runner.drive import Driver
from turnkeep.runner.effects import AskModel, ModelReply, ToolCall
from turnkeep.runner.models import ModelClient
from turnkeep.testing import Exchange, ModelServer, Reply

QUERIES = ("weather", "news")
ANSWER = "Sunny, and nothing new."
_GOING_ON = "SELECT count(*) FROM turnkeep.branch WHERE status = %s"


class _Instant:
    """A model that takes no time: two calls, then a text."""

    async def reply(self, effect: AskModel, on_text: object = None) -> ModelReply:
        if effect.messages[-1]["role"] == "tool":
            return ModelReply({"role": "assistant", "content": ANSWER}, ANSWER, None, (), "stop", None)
        calls = tuple(ToolCall(f"call_{n}", "look_up", f'{{"query":"{query}"}}') for n, query in enumerate(QUERIES))
        own = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
        return ModelReply({"role": "assistant", "content": None, "tool_calls": own}, None, None, calls, None, None)


async def overhead(conninfo: str) -> Finding:
    """A turn with two tools through the runner, less the same statements with the same content by hand."""
    async with turnkeep.open(conninfo) as store:

        async def claimed() -> turnkeep.AsyncBranch:
            name = str(uuid.uuid4())
            await store.post(name, "hello", agent_id="bench")
            branch = await store.conversation(name)
            await branch.claim()
            return branch

        async def by_runner() -> uuid.UUID:
            branch = await claimed()
            await Driver(branch, agent, cast("ModelClient", _Instant())).run()
            return branch.conversation_id

        pattern = await store.restore(await by_runner())
        _, called, first, second, final = pattern.messages

        async def by_hand() -> None:
            branch = await claimed()
            await branch.take_request(state=pattern.state)
            await branch.save([called], tool_calls=_calls(called), state=pattern.state)
            for result in (first, second):
                results = [{"tool_call_id": result["metadata"]["tool_call_id"], "outcome": "ok", "attempt": 0}]
                await branch.save([result], tool_results=results, answers=branch.pending[:1], state=pattern.state)
            await branch.save([final], state=pattern.state, final=True)
            await branch.release()

        hands, runners = await interleaved([by_hand, by_runner], 200, 20)
    size = len(hands) // 5
    pieces = [
        statistics.median(runners[i : i + size]) - statistics.median(hands[i : i + size])
        for i in range(0, size * 5, size)
    ]
    return Finding(
        "the runner in a turn with two tools, beyond its saves, in ms",
        statistics.median(pieces) * 1000,
        1.0,
        False,
        f"{milliseconds(runners)} against {milliseconds(hands)}",
    )


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**call, "policy": "rerun"} for call in message["metadata"]["tool_calls"]]


async def takeover(conninfo: str) -> Finding:
    """Conversations whose worker is killed in the middle of 500 inferences: until the last one has its reply."""
    script = [Exchange("*", [Reply(content=ANSWER)])]
    with ModelServer(script, first_token_seconds=3600) as model:
        environment = {**os.environ, "MODEL_URL": model.base_url}
        command = [sys.executable, "-m", "bench.agent", conninfo]
        async with turnkeep.open(conninfo, pool_size=20) as store:
            await asyncio.gather(
                *(store.post(f"c{number}", "hello", agent_id="bench") for number in range(CONVERSATIONS))
            )
            first = await asyncio.create_subprocess_exec(*command, env=environment)
            await _until(lambda: model.status()["streaming"] >= CONVERSATIONS)
            with psycopg.connect(conninfo, autocommit=True) as watcher:
                assert watcher.execute(_GOING_ON, ("running",)).fetchone() == (CONVERSATIONS,)
                first.kill()
                killed = time.monotonic()
                await first.wait()
                model.pace()
                second = await asyncio.create_subprocess_exec(*command, env=environment)
                await _until(lambda: watcher.execute(_GOING_ON, ("idle",)).fetchone() == (CONVERSATIONS,))
                seconds = time.monotonic() - killed
                second.kill()
                await second.wait()
    return Finding(
        f"{CONVERSATIONS} conversations after kill -9 of their worker, in s beyond the lease",
        seconds - LEASE,
        5.0,
        False,
        f"all answered after {seconds:.1f} s, lease {LEASE:g} s",
    )


async def _until(look: Any) -> None:
    deadline = time.monotonic() + 120
    while not await asyncio.to_thread(look):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
