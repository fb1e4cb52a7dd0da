"""vLLM: its processes killed with SIGKILL in the middle of a stream, all at once or the engine's alone (G1, G4, G6)."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnkeep
from engines.conftest import Scene, agent_env, said
from engines.engine import PORT, Engine
from tests.observing import until

PYTHON, MODEL = os.environ.get("VLLM_PYTHON"), os.environ.get("TINY_MODEL")
pytestmark = pytest.mark.skipif(not (PYTHON and MODEL), reason="VLLM_PYTHON and TINY_MODEL are not both set")

STORY = "Tell me a story"
WEATHER = "What is the weather in Paris?"
UNDER_WAY = 20  # pieces, after which a stream is under way
TOKENS = 1500  # of a story
SERVE = "vllm.entrypoints.openai.api_server"
OPTIONS = ["--host", "127.0.0.1", "--port", PORT, "--served-model-name", "tiny", "--dtype", "float32"]
OPTIONS += ["--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager"]
OPTIONS += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The module's vLLM."""
    log = tmp_path_factory.mktemp("engine") / "vllm.log"
    with Engine([str(PYTHON), "-m", SERVE, "--model", str(MODEL), *OPTIONS], ENV, log, patience=240) as engine:
        yield engine


@pytest.fixture
def engine(started: Engine) -> Engine:
    """vLLM, serving, and warm: the first stream of a new one comes all at once."""
    if not started.running:
        started.start()
    started.wait_ready()
    body = {"model": "tiny", "messages": [{"role": "user", "content": STORY}], "max_tokens": 20}
    request = urllib.request.Request(
        f"{started.base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        response.read()
    return started


@pytest.fixture
def scene(dsn: str, directory: Path, engine: Engine) -> Iterator[Scene]:
    # A story that goes on to its last token, so that there is time for a kill. While vLLM starts, all else may be slow:
    # the lease is a long one.
    agent = agent_env("tiny", temperature=0, seed=1, max_tokens=TOKENS, ignore_eos=True)
    scene = Scene(dsn, directory, engine, agent, lease_seconds=15)
    with scene.stack:
        yield scene


async def check_answered_with(scene: Scene, broken: int) -> turnkeep.Checkpoint:
    """The story is told once, by the stream after the one that broke off after so many pieces."""
    head = await scene.reply("story")
    assert [one["role"] for one in head.messages] == ["user", "assistant"]
    reply = head.messages[1]
    assert reply["content"] == said(scene.pieces("story")[broken:])
    assert reply["metadata"]["finish_reason"] == "length"
    assert reply["metadata"]["usage"]["completion_tokens"] == TOKENS
    assert reply["content"].startswith(said(scene.pieces("story")[:broken]))
    assert [place[0] for place in await scene.places("story")] == [0, 0]
    return head


async def test_an_engine_killed_in_a_stream_is_asked_again(scene: Scene) -> None:
    await scene.post("story", STORY)
    scene.worker("one")
    await scene.see_pieces("story", UNDER_WAY)
    counts = scene.counts()
    scene.engine.kill()
    scene.engine.start()
    await until(lambda: "can't be reached" in (scene.directory / "one.log").read_text(), "a worker that waits")
    broken = len(scene.pieces("story"))
    assert scene.counts() == counts
    scene.engine.wait_ready()
    await check_answered_with(scene, broken)


async def test_the_death_of_the_computing_process_alone_is_no_end_of_the_reply(scene: Scene) -> None:
    await scene.post("story", STORY)
    scene.worker("one")
    await scene.see_pieces("story", UNDER_WAY)
    os.kill(computing_process(scene.engine), signal.SIGKILL)
    await until(
        lambda: "waits for the model server" in (scene.directory / "one.log").read_text(), "a worker that waits"
    )
    broken = len(scene.pieces("story"))
    scene.engine.kill()
    scene.engine.start()
    await check_answered_with(scene, broken)


async def test_an_engine_killed_while_a_tool_runs_is_told_the_result_once(scene: Scene) -> None:
    scene.agent = agent_env("tiny", tools=True, temperature=0, seed=1, max_tokens=200)
    await scene.post("weather", WEATHER)
    scene.worker("one")
    await until(scene.ran, "a tool that runs")
    scene.engine.kill()
    scene.let_tools_end()
    scene.engine.start()
    head = await scene.reply("weather")
    assert [one["role"] for one in head.messages] == ["user", "assistant", "tool", "assistant"]
    call, result, reply = (one["metadata"] for one in head.messages[1:])
    assert call["finish_reason"] == "tool_calls"
    assert [(one["name"], json.loads(one["arguments"])) for one in call["tool_calls"]] == [
        ("get_weather", {"city": "Paris"})
    ]
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert head.messages[2]["content"] == "Sunny in Paris."
    assert reply["finish_reason"] == "stop"
    assert head.messages[3]["content"].startswith("Done:")
    assert len(scene.ran()) == 1


async def test_a_worker_killed_while_a_tool_runs_leaves_the_call_to_the_next_one(scene: Scene) -> None:
    scene.agent = agent_env("tiny", tools=True, temperature=0, seed=1, max_tokens=200)
    await scene.post("weather", WEATHER)
    worker = scene.worker("one")
    await until(scene.ran, "a tool that runs")
    worker.kill()
    scene.let_tools_end()
    scene.worker("two")
    head = await scene.reply("weather")
    assert [one["role"] for one in head.messages] == ["user", "assistant", "tool", "assistant"]
    assert head.messages[2]["metadata"]["outcome"] == "unknown"
    assert head.messages[3]["content"]
    assert len(scene.ran()) == 1


def computing_process(engine: Engine) -> int:
    """The process that holds the model, apart from the one that speaks HTTP."""
    found = re.findall(r"\(EngineCore[^)]*pid=(\d+)\)", engine.log)
    return int(found[-1])
