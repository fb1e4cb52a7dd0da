"""The shell completes commands and the ids of conversations, quickly or not at all."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnkeep
from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN

PROGRAMS = {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}


@pytest.fixture
async def ids(store: turnkeep.AsyncStore) -> None:
    """Conversations, one with an id that a shell would take apart."""
    await store.conversation("ticket-42", agent_id="support", title="Where is order 7?")
    await store.conversation("ticket-7; rm -rf /", agent_id="support")
    await store.conversation("0000aaaa-0000-4000-8000-000000000000")


def completed(line: str, dsn: str, **environment: str) -> list[str]:
    """What the command offers to bash for the last word of a line."""
    words = line.split(" ")
    protocol = {"_TURNKEEP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [COMMAND], env=PLAIN | {"TURNKEEP_DATABASE_URL": dsn} | protocol | environment,
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.usefixtures("ids")
def test_ids_are_completed(dsn: str) -> None:
    assert completed("turnkeep show ticket-4", dsn) == ["ticket-42"]
    assert completed("turnkeep show tick", dsn) == ["ticket-42"]
    assert completed("turnkeep diff ticket-42 0000", dsn) == ["0000aaaa-0000-4000-8000-000000000000"]
    everything = completed("turnkeep erase ", dsn)
    assert {"@last", "ticket-42", str(turnkeep.conversation_uuid("ticket-7; rm -rf /"))} <= set(everything)
    assert not {";", "rm"} & set(everything)
    assert completed("turnkeep sho", dsn) == ["show"]
    assert completed("turnkeep --schema other show tick", dsn) == []


@pytest.mark.usefixtures("ids")
def test_other_shells_are_told_what_an_id_is(dsn: str) -> None:
    for protocol in (
        {"_TURNKEEP_COMPLETE": "complete_zsh"},
        {"_TURNKEEP_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    ):
        asked = {"_TYPER_COMPLETE_ARGS": "turnkeep show tick", "TURNKEEP_DATABASE_URL": dsn}
        done = subprocess.run(
            [COMMAND], env=PLAIN | protocol | asked, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        assert "ticket-42" in done.stdout
        assert "Where is order 7?" in done.stdout


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_database_that_does_not_answer_is_not_waited_for(silent: int, empty_dsn: str, tmp_path: Path) -> None:
    assert completed("turnkeep show tick", f"host=127.0.0.1 port={silent}") == []  # within the test's patience
    assert completed("turnkeep show tick", "host=/nowhere") == []
    assert completed("turnkeep show tick", empty_dsn) == []
    assert completed("turnkeep show tick", "nonsense") == []
    new = tmp_path / "postgres"
    assert completed("turnkeep show tick", "embedded", TURNKEEP_EMBEDDED_DIR=str(new)) == []
    assert not new.exists()  # nothing is started for it


@pytest.mark.usefixtures("ids")
def test_bash_completes_an_id(dsn: str) -> None:
    process, terminal = pty.fork()
    if process == 0:
        environment = PLAIN | PROGRAMS | {"TERM": "dumb", "PS1": "", "TURNKEEP_DATABASE_URL": dsn}
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    try:
        os.write(terminal, b'eval "$(turnkeep --show-completion)"; echo re""ady\n')
        _read_until(terminal, b"ready\r\n")
        os.write(terminal, b"turnkeep show tick\t")
        _read_until(terminal, b"ticket-42")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def _read_until(terminal: int, wanted: bytes) -> None:
    deadline = time.monotonic() + PATIENCE
    read = b""
    while wanted not in read:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, read
        read += os.read(terminal, 65536)
