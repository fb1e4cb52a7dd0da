"""Tools run with what the model has said, whatever of it is stored; a worker takes its hook from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import turnkeep
from tests.acceptance.command_line import run
from tests.acceptance.test_runner import Model, agent, ask, drain, model
from tests.observing import Observer
from turnkeep import tool
from turnkeep.redaction import secrets
from turnkeep.testing import Reply, ToolCall

__all__ = ["model"]

SECRET = "sk-proj-canary4711canary4711"


async def test_a_tool_runs_with_the_models_own_words(dsn: str, model: Model, observer: Observer) -> None:
    given: list[Any] = []

    @tool
    async def log_in(password: str, name: str) -> str:
        given.append((password, name))
        return f"logged in with {SECRET}"

    server = model(
        Reply(tool_calls=[ToolCall("log_in", {"password": SECRET, "name": "me"})]),
        Reply(tool_calls=[ToolCall("log_in", {"password": "other", "name": SECRET})]),
        Reply(content=f"done: {SECRET}"),
    )
    async with turnkeep.open(dsn, redact=secrets()) as store:
        key = await ask(store)
        await drain(store, agent(server, log_in))
        reply = await store.wait_reply("c", key, seconds=60)
    assert given == [(SECRET, "me"), ("other", SECRET)]
    assert reply.content == "done: [redacted]"
    assert observer.traces([], SECRET) == {}


def test_the_command_line_takes_a_hook(dsn: str, observer: Observer, tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text("from turnkeep.redaction import secrets\nredact = secrets()\nnone = 7\n")
    where = {"PYTHONPATH": f"{tmp_path}:{Path(turnkeep.__file__).parents[1]}"}
    posted = run("post", "c", f"my key: {SECRET}", "--agent", "a", "--redact", "hooks:redact", dsn=dsn, **where)
    assert posted.code == 0, posted.err
    assert observer.traces([], SECRET) == {}
    assert observer.traces([], "[redacted]")
    for wrong in ("hooks:none", "hooks:nothing", "nowhere:redact"):
        refused = run("post", "c", "hello", "--redact", wrong, dsn=dsn, **where)
        assert refused.code == 2, refused.err
        assert wrong.partition(":")[0] in refused.err
