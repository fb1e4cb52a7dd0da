"""`turnkeep demo` proves what it says, leaves nothing behind, and its check finds what it is there to find."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from turnkeep.demo.app import serve
from turnkeep.demo.check import Evidence, Findings, check
from turnkeep.demo.client import request_of
from turnkeep.demo.exchanges import exchanges, posted
from turnkeep.demo.ledger import Ledger
from turnkeep.demo.outside import OutsideReader
from turnkeep.demo.script import load_scripts
from turnkeep.demo.statements import MAKE_EFFECTS
from turnkeep.demo.stored import read
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.testing import ModelServer

PATIENCE = 600
ALONE = 60  # seconds in which what the demo has started ends by itself
SCRIPTS = [script for script in load_scripts() if script.external_id in ("appointment-desk", "order-support")]


class Demo:
    """The command itself, in a place for temporary files of its own."""

    def __init__(self, *arguments: str) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="tk-"))
        self.place.chmod(0o711)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "turnkeep", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.place)},
        )

    def until_first_kill(self) -> None:
        """Wait until it has killed something for the first time."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "SIGKILL" in line:
                return
        raise AssertionError("the demo ended without a kill")

    def end(self) -> tuple[int, str, str]:
        """Wait for its end. Gives exit status, stdout and stderr."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors

    def left(self) -> list[str]:
        """Files and processes that are still there."""
        return [*map(str, self.place.iterdir()), *self.processes()]

    def processes(self) -> list[str]:
        """Processes that are still there."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                about = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if bytes(self.place) in about:
                found.append(about.decode(errors="replace"))
        return found

    def clear(self) -> None:
        """End it, whatever it is at."""
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture
def start() -> Iterator[Callable[..., Demo]]:
    """Start the demo with arguments."""
    started: list[Demo] = []

    def begin(*arguments: str) -> Demo:
        started.append(Demo(*arguments))
        return started[-1]

    yield begin
    for demo in started:
        demo.clear()


# -- the command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demo_leaves_no_process_and_no_file(start: Callable[..., Demo], number: signal.Signals) -> None:
    demo = start()
    demo.until_first_kill()
    assert len(demo.processes()) > 3
    demo.process.send_signal(number)
    status, _, errors = demo.end()
    assert (status, errors) == (130, "")
    assert demo.left() == []


def test_a_killed_demo_leaves_no_process(start: Callable[..., Demo]) -> None:
    demo = start()
    demo.until_first_kill()
    demo.process.kill()
    deadline = time.monotonic() + ALONE
    while demo.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert demo.processes() == []


def test_nothing_is_lost_under_kills_of_everything(start: Callable[..., Demo]) -> None:
    demo = start("--json", "--seed", "1")
    status, output, errors = demo.end()
    assert (status, errors) == (0, "")
    (line,) = output.splitlines()
    report = json.loads(line)
    assert report["requests"] == report["acknowledged"] == report["answered"] == 106
    assert report["lost"] == report["doubled"] == report["uncertain"] == 0
    assert report["equal"] == report["conversations"] == 12
    assert (report["messages"], report["tool_calls"], report["replies"]) == (576, 226, 244)
    assert report["effects"] == report["effects_due"] > 15
    assert report["problems"] == []
    assert report["replies_again"] > 0
    assert report["calls_again"] > 0
    assert len(report["kills"]) >= 8
    assert {kill["target"] for kill in report["kills"]} == {"model server", "worker", "postgres", "worker and postgres"}
    seen = " ".join(kill["seen"] for kill in report["kills"])
    assert all(re.search(what, seen) for what in ("streaming", "tool", "transaction", "saves? in flight"))
    assert sum(kill["in_flight"] > 0 for kill in report["kills"]) >= 8
    assert all(kill["interrupted"] for kill in report["kills"])
    assert max(kill["recovery_seconds"] for kill in report["kills"]) == report["worst_recovery_seconds"]
    assert report["ok"] is True
    assert demo.left() == []


def test_an_acknowledgement_before_the_commit_is_found_out(start: Callable[..., Demo]) -> None:
    demo = start("--sabotage", "--seed", "2")
    status, output, errors = demo.end()
    assert (status, errors) == (1, "")
    lost = re.search(r"(\d+) lost", output)
    assert lost is not None
    assert int(lost[1]) > 0
    assert "was acknowledged, and is not in the database" in output
    assert "\x1b" not in output
    assert demo.left() == []


# -- the check reads what is there


@pytest.fixture(scope="module")
def played(server: EmbeddedPostgres, template: str) -> Iterator[tuple[str, Evidence]]:
    """A database with two conversations that nobody disturbed, and what they left outside it."""
    name = "demo_played"
    directory = Path(tempfile.mkdtemp(prefix="tk-"))
    conninfo = make_conninfo(server.conninfo, dbname=name)
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        names = sql.Identifier(name), sql.Identifier(template)
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    with psycopg.connect(conninfo) as connection:
        connection.execute(MAKE_EFFECTS)
    with ModelServer(exchanges(SCRIPTS), first_token_seconds=0, token_seconds=0) as model:
        order = {
            "name": "worker",
            "database": conninfo,
            "schema": "turnkeep",
            "base_url": model.base_url,
            "outside": str(directory / "outside.jsonl"),
            "paced": False,
            "drain": True,
        }
        ledger = asyncio.run(_post_all(conninfo))
        asyncio.run(serve(order))
    outside = OutsideReader(directory / "outside.jsonl")
    outside.look()
    with psycopg.connect(conninfo) as connection:
        stored, effects = read(connection, "turnkeep")
    yield conninfo, Evidence(ledger, stored, stored, effects, outside.marks, [])
    shutil.rmtree(directory)
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


async def _post_all(conninfo: str) -> Ledger:
    ledger = Ledger()
    async with turnkeep.open(conninfo) as store:
        for script in SCRIPTS:
            for number, turn in enumerate(script.turns):
                request = request_of(script, number)
                await store.post(script.external_id, posted(turn), key=request.key, agent_id=script.agent_id)
                ledger.take({"intended": asdict(request)})
                ledger.take({"acknowledged": request.key})
                ledger.take({"answered": request.key})
    return ledger


def found_after(played: tuple[str, Evidence], *statements: LiteralString) -> Findings:
    """What the check finds after some statements, which are rolled back."""
    conninfo, left = played
    with psycopg.connect(conninfo) as connection:
        for statement in statements:
            desk = {"desk": turnkeep.conversation_uuid("appointment-desk")}
            assert connection.execute(statement, desk).rowcount > 0
        stored, effects = read(connection, "turnkeep")
        connection.rollback()
    return check(SCRIPTS, Evidence(left.ledger, stored, left.undisturbed, effects, left.marks, left.kills))


def test_an_undisturbed_run_is_clean(played: tuple[str, Evidence]) -> None:
    findings = found_after(played)
    assert findings.problems == ()
    assert findings.clean
    assert (findings.requests, findings.messages, findings.calls_again, findings.unknown) == (12, 64, 0, 0)


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        pytest.param(
            ["DELETE FROM turnkeep.request WHERE conversation_id = %(desk)s AND taken_turn = 2"],
            "request appointment-desk/2 was acknowledged, and is not in the database",
            id="a request deleted",
        ),
        pytest.param(
            ["DELETE FROM turnkeep.message WHERE conversation_id = %(desk)s AND position = 5"],
            "appointment-desk: its transcript has 32 messages, undisturbed it has 33",
            id="a message deleted",
        ),
        pytest.param(
            ["DELETE FROM turnkeep.checkpoint WHERE conversation_id = %(desk)s AND turn_index = 1 AND sub_step = 1"],
            "appointment-desk: checkpoint 1.1 is missing",
            id="a checkpoint deleted",
        ),
        pytest.param(
            ["DELETE FROM turnkeep.conversation WHERE conversation_id = %(desk)s"],
            "request appointment-desk/0 was acknowledged, and is not in the database",
            id="a conversation deleted",
        ),
        pytest.param(
            [
                "INSERT INTO turnkeep.checkpoint (conversation_id, turn_index, sub_step, branch, phase, created_at,"
                " write_id, spans) SELECT conversation_id, turn_index, sub_step, 1, phase, created_at, write_id, spans"
                " FROM turnkeep.checkpoint WHERE conversation_id = %(desk)s AND turn_index = 1 AND sub_step = 1"
            ],
            "appointment-desk: checkpoint 1.1 is stored 2 times",
            id="a checkpoint doubled",
        ),
        pytest.param(
            [
                "INSERT INTO turnkeep.message (conversation_id, branch, position, body, size)"
                " SELECT conversation_id, 0, 99, body, size FROM turnkeep.message"
                " WHERE conversation_id = %(desk)s AND position = 5"
            ],
            "appointment-desk: 34 messages are stored, and its transcript has 33",
            id="a message doubled",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.message SET body = replace(body::text, 'appointment', 'disappointment')::json"
                " WHERE conversation_id = %(desk)s AND body::text LIKE '%%appointment%%'"
            ],
            "is not the undisturbed one in its content",
            id="a text altered",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.checkpoint SET answers = NULL, tool_results = NULL WHERE conversation_id = %(desk)s"
                " AND phase <> 'started' AND answers IS NOT NULL"
            ],
            "has 0 results, not one",
            id="results deleted",
        ),
        pytest.param(
            ["UPDATE turnkeep.branch SET status = 'running' WHERE conversation_id = %(desk)s"],
            "appointment-desk: branch 0 is running",
            id="a branch left running",
        ),
        pytest.param(
            ["UPDATE turnkeep.branch SET lease_until = now(), lease_token = 7 WHERE conversation_id = %(desk)s"],
            "appointment-desk: branch 0 is idle, and leased",
            id="a lease left",
        ),
        pytest.param(
            ["INSERT INTO demo.effect SELECT * FROM demo.effect WHERE tool = 'hold_slot'"],
            "has left 2 effects",
            id="an effect doubled",
        ),
        pytest.param(["DELETE FROM demo.effect WHERE tool = 'hold_slot'"], "has left 0 effects", id="an effect lost"),
        pytest.param(
            [
                "INSERT INTO turnkeep.conversation (conversation_id, external_id, created_at)"
                " VALUES (gen_random_uuid(), 'stranger', now())"
            ],
            "stranger: nobody asked for this conversation",
            id="a conversation too many",
        ),
    ],
)
def test_the_check_finds(played: tuple[str, Evidence], statements: list[LiteralString], problem: str) -> None:
    findings = found_after(played, *statements)
    assert not findings.clean
    assert any(problem in one for one in findings.problems), findings.problems
