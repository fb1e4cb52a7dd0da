"""llama.cpp: it, and the workers that it answers, killed with SIGKILL in the middle of a stream (G1, G5, G6)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnkeep
from engines.conftest import LEASE, Scene, agent_env, said
from engines.engine import PORT, Engine
from tests.observing import until

HERE = Path(__file__).parent
PYTHON = os.environ.get("LLAMACPP_PYTHON", str(HERE / ".venv/bin/python"))
STORY = "Write a long story about a keeper of a lighthouse."
UNDER_WAY = 20  # pieces, after which a stream is under way


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The module's llama.cpp."""
    log = tmp_path_factory.mktemp("engine") / "llamacpp.log"
    with Engine([PYTHON, str(HERE / "llamacpp.py"), PORT], {}, log, patience=60) as engine:
        yield engine


@pytest.fixture
def engine(started: Engine) -> Engine:
    """llama.cpp, serving."""
    if not started.running:
        started.start()
    started.wait_ready()
    return started


@pytest.fixture
def scene(dsn: str, directory: Path, engine: Engine) -> Iterator[Scene]:
    # Without its cache of prompts llama.cpp computes the same whatever it was asked before.
    scene = Scene(
        dsn, directory, engine, agent_env("smollm2", temperature=0, seed=1, max_tokens=150, cache_prompt=False)
    )
    with scene.stack:
        yield scene


async def check_answered_once(scene: Scene, conversation: str) -> turnkeep.Checkpoint:
    """One request, one reply, as whole as the engine's last stream, and nobody holds anything."""
    head = await scene.reply(conversation)
    assert [place[0] for place in await scene.places(conversation)] == [0, 0]
    assert [(one["role"], bool(one["content"])) for one in head.messages] == [("user", True), ("assistant", True)]
    metadata = head.messages[1]["metadata"]
    assert metadata["finish_reason"] in ("stop", "length")
    assert metadata["usage"]["completion_tokens"] > UNDER_WAY
    await until(lambda: scene.free(), "the end of the lease")
    return head


async def test_an_engine_killed_in_a_stream_is_asked_again_by_the_worker_that_kept_its_lease(scene: Scene) -> None:
    await scene.post("story", STORY)
    worker = scene.worker("one")
    await scene.see_pieces("story", UNDER_WAY)
    held, counts = scene.lease(), scene.counts()
    scene.engine.kill()
    await until(lambda: scene.lease().until > held.until + LEASE, "a lease renewed beyond its end")
    assert (scene.lease().owner, scene.lease().token) == ("one", held.token)
    assert scene.counts() == counts
    broken = scene.pieces("story")

    scene.engine.start()
    await scene.see_pieces("story", len(broken) + 1)
    assert (scene.lease().owner, scene.lease().token) == ("one", held.token)
    assert scene.counts() == counts
    head = await check_answered_once(scene, "story")
    assert worker.alive
    assert said(scene.pieces("story")[len(broken) :]) == head.messages[1]["content"]
    assert len(said(broken)) < len(head.messages[1]["content"])


async def test_a_worker_killed_in_a_stream_leaves_the_turn_to_the_next_one(scene: Scene) -> None:
    await scene.post("story", STORY)
    worker = scene.worker("one")
    await scene.see_pieces("story", UNDER_WAY)
    scene.worker("two")
    counts = scene.counts()
    worker.kill()
    left = scene.lease()
    assert left.owner == "one"
    first = (await scene.see_pieces("story", 1, "two"))[0]
    assert first.at > left.until
    assert scene.counts() == counts
    head = await check_answered_once(scene, "story")
    assert said(scene.pieces("story", "two")) == head.messages[1]["content"]


async def test_the_reply_after_a_kill_is_that_of_an_undisturbed_run(scene: Scene) -> None:
    await scene.post("whole", STORY)
    scene.worker("one")
    whole = (await check_answered_once(scene, "whole")).messages[1]
    await scene.post("disturbed", STORY)
    for _ in range(2):
        await scene.see_pieces("disturbed", len(scene.pieces("disturbed")) + UNDER_WAY)
        scene.engine.kill()
        scene.engine.start()
    disturbed = (await check_answered_once(scene, "disturbed")).messages[1]
    assert disturbed["content"] == whole["content"]
    assert disturbed["metadata"]["finish_reason"] == whole["metadata"]["finish_reason"]


async def test_tools_may_be_offered(scene: Scene) -> None:
    """So small a model may call them or not: what counts is that the turn ends with a reply, or as failed for good."""
    scene.agent = agent_env("smollm2", tools=True, temperature=0, seed=1, max_tokens=60)
    scene.let_tools_end()
    await scene.post("weather", "What is the weather in Paris?")
    scene.worker("one")
    try:
        head = await scene.reply("weather")
    except turnkeep.TurnFailedError as error:
        pytest.skip(f"this engine refuses tools: {error}")
    assert head.messages[-1]["role"] == "assistant"
    assert head.messages[-1]["content"]
