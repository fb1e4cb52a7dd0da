"""Draws what `turnkeep ls`, `show`, `diff` and `show --tree` print, as SVG for README and docs.

The commands are the real ones, on a terminal, on a private Postgres that is removed afterwards. Run it by `make
pictures` when their output has changed.
"""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

import turnkeep
from turnkeep import embedded
from turnkeep.testing import FakeClock

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COMMAND = str(Path(sys.executable).with_name("turnkeep"))
COLUMNS = 108
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
HOUR, DAY = 3600.0, 86_400.0
PICTURES = {
    "ls": "turnkeep ls",
    "show": "turnkeep show ticket-42",
    "tree": "turnkeep show ticket-42 --tree",
    "diff": "turnkeep diff ticket-42 ticket-42:polite",
}


async def fill() -> None:
    """Some conversations, each stopped at another place."""
    async with turnkeep.open("embedded") as store:
        clock = FakeClock(store.conninfo)
        clock.advance(-2 * DAY)
        await other(store, "invoices-may", "books", "Overdue invoices", "Three: 2207, 2214 and 2290.")
        clock.advance(DAY + 20 * HOUR)
        await other(store, "release-1.8", "release", "Release notes of 1.8", None)
        clock.advance(3.3 * HOUR)
        failed = await other(store, "ticket-40", "support", "Broken cup", None)
        await failed.claim(owner="worker-1", seconds=600)
        await failed.release(failure={"type": "ModelUnavailableError", "message": "the model server answers 503"})
        clock.advance(0.69 * HOUR)
        running = await other(store, "triage-0613", "oncall", "Why is checkout slow?", None)
        await running.claim(owner="gpu-2:4711", seconds=120)
        clock.advance(0.01 * HOUR)
        await ticket(store)


async def other(
    store: turnkeep.AsyncStore, name: str, agent: str, title: str, answer: str | None
) -> turnkeep.AsyncBranch:
    """A conversation of one turn, open where there is no answer."""
    branch = await store.conversation(name, agent_id=agent, title=title)
    await branch.begin_turn(said("user", title))
    if answer is not None:
        await branch.save([{"role": "assistant", "content": answer}], final=True)
    return branch


async def ticket(store: turnkeep.AsyncStore) -> None:
    """A conversation with tools, a fork of it, and a call under way."""
    branch = await store.conversation("ticket-42", agent_id="support", title="Order 7 never came")
    await branch.begin_turn({"role": "user", "content": "Order 7 never came. Refund it, please."})
    await call(branch, "One moment.", "find_order", {"order": 7}, {"status": "lost by the carrier", "cents": 4200})
    await branch.save([said("assistant", "It was lost. Shall I refund 42.00?")], final=True)
    fork = await store.fork("ticket-42", at=(0, 2), name="polite")
    await fork.save([said("assistant", "I am sorry: the carrier lost it.\nMay I refund 42.00?")], final=True)
    await branch.begin_turn(said("user", "Yes."))
    refund = {"id": "call_2", "name": "refund", "arguments": {"order": 7, "cents": 4200}}
    message = {"role": "assistant", "content": None, "metadata": {"tool_calls": [refund]}}
    await branch.save([message], tool_calls=[refund], state={"step_count": 2, "flags": {"is_final": False}})
    await store.post("ticket-42", "And send me a mail when it is done.", key="mail-2")


async def call(branch: turnkeep.AsyncBranch, words: str, name: str, arguments: dict[str, Any], answer: Any) -> None:
    """A tool call and its result, each saved."""
    asked = {"id": "call_1", "name": name, "arguments": arguments}
    await branch.save(
        [{"role": "assistant", "content": words, "metadata": {"tool_calls": [asked]}}],
        tool_calls=[asked],
        state={"step_count": 1, "flags": {"is_final": False}},
    )
    result = {"role": "tool", "content": answer, "metadata": {"tool_name": name, "tool_call_id": "call_1"}}
    await branch.save([result], tool_results=[result], answers=branch.pending)


def said(role: str, words: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": words}


def seen(command: str) -> str:
    """What a terminal is sent by a command."""
    ours, theirs = pty.openpty()
    surroundings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    arguments = [COMMAND, *shlex.split(command)[1:]]
    with subprocess.Popen(arguments, stdout=theirs, stderr=theirs, env=surroundings):
        os.close(theirs)
        sent = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # the end, on Linux
                break
            if not read:
                break
            sent += read
    os.close(ours)
    return sent.decode().replace("\r\n", "\n")


def draw(name: str, command: str, shown: str) -> None:
    """Put a command and what it printed into a picture of a terminal. It asks no other server for a font."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    console.print(Text.from_ansi(shown.rstrip("\n")), end="\n\n")  # the last line would lose its lower edge
    style = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    style = re.sub(r"font-family: (?:Fira Code, monospace|arial);", f"font-family: {FONTS};", style)
    picture = console.export_svg(title="turnkeep", code_format=style, unique_id=f"turnkeep-{name}")
    picture = re.sub(r"<!--.*?-->", "", picture)
    (IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


def main() -> None:
    """Draw every picture."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="turnkeep-pictures-"))
    folder.chmod(0o755)
    os.environ |= {"TURNKEEP_EMBEDDED_DIR": str(folder / "postgres"), "TURNKEEP_DATABASE_URL": "embedded"}
    try:
        with embedded.EmbeddedPostgres.start():
            asyncio.run(fill())
            for name, command in PICTURES.items():
                draw(name, command, seen(command))
    finally:
        embedded.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
