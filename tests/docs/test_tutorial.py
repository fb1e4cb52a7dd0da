"""The tutorial's program does what its reader is told: it is killed, goes on, and then has nothing left to do."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import turnkeep
from tests.docs.test_snippets import ROOT, environment, modules

PAGE = (ROOT / "docs" / "tutorials" / "first-conversation.md").read_text()


def told(command: str) -> str:
    """What the page says that a command prints: the first time, or the next ones, in order."""
    return "".join(re.findall(rf"^{re.escape(command)}.*\n```\n+```\n((?:.*\n)*?)```$", PAGE, re.MULTILINE))


def ran(dsn: str, folder: Path, program: str = "support.py", **more: str) -> tuple[int, str]:
    surroundings = {**environment(dsn), "PYTHONUNBUFFERED": "1", **more}
    done = subprocess.run(
        [sys.executable, program], env=surroundings, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=120
    )
    return done.returncode, done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    modules(tmp_path)
    return tmp_path


async def test_the_program_goes_on_after_the_kill_and_answers_once(
    dsn: str, folder: Path, store: turnkeep.AsyncStore
) -> None:
    code, first = ran(dsn, folder, CRASH="1")
    assert (code, first + "it is dead\n") == (-signal.SIGKILL, told("CRASH=1 python support.py"))
    left = await store.restore("order-7")
    assert [message["role"] for message in left.messages] == ["user", "assistant"]
    assert [call.call_id for call in left.pending] == ["call_1"]
    again = [ran(dsn, folder) for _ in range(2)]
    assert [code for code, _ in again] == [0, 0]
    assert "".join(printed for _, printed in again) == told("python support.py")
    answered = await store.restore("order-7")
    assert [message["role"] for message in answered.messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_refund_that_may_have_run_is_not_run_again(dsn: str, folder: Path, store: turnkeep.AsyncStore) -> None:
    branch = await store.conversation("order-8")
    await branch.begin_turn({"role": "user", "content": "Refund order 8."}, key="message-1")
    call = {"id": "call_1", "name": "refund", "arguments": {"order": 8, "cents": 4200}}
    await branch.save([{"role": "assistant", "tool_calls": [call]}], tool_calls=[call])
    await branch.mark_started(branch.pending)  # and here its process died
    code = (
        "import asyncio, turnkeep, refunds\n"
        "async def main():\n"
        "    async with turnkeep.open() as store:\n"
        "        branch = await store.conversation('order-8')\n"
        "        await refunds.settle(branch, branch.pending[0], refunds.refund)\n"
        "asyncio.run(main())\n"
    )
    (folder / "again.py").write_text(code)
    assert ran(dsn, folder, "again.py") == (0, "")
    assert (await store.restore("order-8")).messages[-1]["content"].startswith("Nobody knows")
