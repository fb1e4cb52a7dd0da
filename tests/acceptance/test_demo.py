"""`turnkeep demo` proves what it says, and its check finds what it is there to find."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from rich.console import Console

import turnkeep
from turnkeep.demo.check import Findings, check, read
from turnkeep.demo.director import plan
from turnkeep.demo.events import Acknowledged, Ended, Holding, Killed, PostgresStarted, Recovered, Target, WriterStarted
from turnkeep.demo.ledger import Intent, Ledger, LedgerFile, read_ledger
from turnkeep.demo.saves import saves_of
from turnkeep.demo.script import load_scripts
from turnkeep.demo.show import Board
from turnkeep.demo.writer import write

PATIENCE = 120
SCRIPTS = [script for script in load_scripts() if script.external_id in ("sales-analysis", "translation-desk")]
SAVES = sum(script.saves for script in SCRIPTS)


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

    def end(self) -> tuple[int, str, str]:
        """Wait for its end. Gives exit status, stdout and stderr."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors

    def left(self) -> list[str]:
        """Files and processes that are still there."""
        found = [str(path) for path in self.place.iterdir()]
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
        self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture(scope="module")
def demos() -> Iterator[dict[str, Demo]]:
    """Two demos side by side: most of their time is waiting for servers to come back."""
    running = {"plain": Demo("--json", "--seed", "1"), "sabotaged": Demo("--sabotage", "--seed", "1")}
    yield running
    for demo in running.values():
        demo.clear()


# -- the command


def test_ctrl_c_leaves_no_process_and_no_file(demos: dict[str, Demo]) -> None:
    demo = Demo()
    try:
        assert demo.process.stdout is not None
        for line in demo.process.stdout:
            if "SIGKILL" in line:
                break
        assert len(demo.left()) > 3
        demo.process.send_signal(signal.SIGINT)
        status, _, errors = demo.end()
        assert (status, errors) == (130, "")
        assert demo.left() == []
    finally:
        demo.clear()


def test_nothing_is_lost_under_kills_with_saves_in_flight(demos: dict[str, Demo]) -> None:
    status, output, errors = demos["plain"].end()
    assert (status, errors) == (0, "")
    (line,) = output.splitlines()
    report = json.loads(line)
    total = sum(script.saves for script in load_scripts())
    assert report["acknowledged"] == report["saves"] == report["messages"] == total == 576
    assert report["missing"] == report["duplicated"] == report["unacknowledged"] == 0
    assert report["equal"] == report["finished"] == report["conversations"] == 12
    assert report["problems"] == []
    assert report["tool_results"] == sum(
        len(save.tool_results) for script in load_scripts() for save in saves_of(script)
    )
    assert len(report["kills"]) >= 8
    assert {kill["target"] for kill in report["kills"]} == {"writer", "postgres", "both"}
    assert all(kill["in_flight"] > 0 for kill in report["kills"])
    assert max(kill["recovery_seconds"] for kill in report["kills"]) == report["worst_recovery_seconds"]
    assert report["sent_again"] >= report["committed_before_sent_again"] > 0
    assert report["ok"] is True
    assert demos["plain"].left() == []


def test_an_acknowledgement_before_the_commit_is_found_out(demos: dict[str, Demo]) -> None:
    status, output, errors = demos["sabotaged"].end()
    assert (status, errors) == (1, "")
    missing = re.search(r"(\d+) missing", output)
    assert missing is not None
    assert int(missing[1]) > 0
    assert "was acknowledged, and is not in the database" in output
    assert "\x1b" not in output
    assert demos["sabotaged"].left() == []


# -- the check: each thing that can be wrong is found


@pytest.fixture
def ledger(dsn: str) -> Ledger:
    """A ledger of two conversations that are played to their end, undisturbed."""

    async def play() -> Ledger:
        ledger = Ledger()
        async with turnkeep.open(dsn) as store:
            for script in SCRIPTS:
                branch = await store.conversation(script.external_id, agent_id=script.agent_id)
                for save in saves_of(script):
                    intent = Intent(script.external_id, *save.place, str(uuid.uuid4()))
                    ledger.take(asdict(intent))
                    await write(branch, save, uuid.UUID(intent.write_id))
                    ledger.take({"acknowledged": intent.write_id})
        return ledger

    return asyncio.run(play())


def found_after(dsn: str, ledger: Ledger, *statements: LiteralString) -> Findings:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            assert connection.execute(statement, {"sales": turnkeep.conversation_uuid("sales-analysis")}).rowcount > 0
    return check(SCRIPTS, ledger, read(dsn))


def test_an_undisturbed_run_is_clean(dsn: str, ledger: Ledger) -> None:
    findings = check(SCRIPTS, ledger, read(dsn))
    assert findings.clean
    assert (findings.acknowledged, findings.messages, findings.equal, findings.finished) == (SAVES, SAVES, 2, 2)


@pytest.mark.parametrize(
    ("statements", "numbers", "problem"),
    [
        pytest.param(
            ["DELETE FROM turnkeep.message WHERE conversation_id = %(sales)s AND position = 5"],
            {"missing": 1, "equal": 1},
            "sales-analysis 1.0 was acknowledged, and a message of it is not in the conversation",
            id="a message deleted",
        ),
        pytest.param(
            ["DELETE FROM turnkeep.checkpoint WHERE conversation_id = %(sales)s AND turn_index = 1 AND sub_step = 1"],
            {"missing": 1, "equal": 1},
            "sales-analysis 1.1 was acknowledged, and is not in the database",
            id="a checkpoint deleted",
        ),
        pytest.param(
            ["DELETE FROM turnkeep.conversation WHERE conversation_id = %(sales)s"],
            {"equal": 1, "finished": 1},
            "sales-analysis: it is not finished",
            id="a conversation deleted",
        ),
        pytest.param(
            [
                "INSERT INTO turnkeep.checkpoint (conversation_id, turn_index, sub_step, branch, phase, created_at,"
                " write_id, spans) SELECT conversation_id, turn_index, sub_step, 1, phase, created_at, write_id, spans"
                " FROM turnkeep.checkpoint WHERE conversation_id = %(sales)s AND turn_index = 1 AND sub_step = 1"
            ],
            {"duplicated": 2, "equal": 1},
            "sales-analysis 1.1 is stored 2 times",
            id="a checkpoint doubled",
        ),
        pytest.param(
            [
                "INSERT INTO turnkeep.checkpoint (conversation_id, turn_index, sub_step, branch, phase, created_at,"
                " write_id, spans) SELECT conversation_id, 99, 0, 0, phase, created_at, write_id, spans"
                " FROM turnkeep.checkpoint WHERE conversation_id = %(sales)s AND turn_index = 1 AND sub_step = 1"
            ],
            {"duplicated": 1, "equal": 1},
            "is stored 2 times",
            id="a write id in two places",
        ),
        pytest.param(
            [
                "INSERT INTO turnkeep.message (conversation_id, branch, position, body, size)"
                " SELECT conversation_id, 0, 99, body, size FROM turnkeep.message"
                " WHERE conversation_id = %(sales)s AND position = 5"
            ],
            {"duplicated": 1, "missing": 0, "equal": 1},
            "sales-analysis: a message is stored more than once",
            id="a message doubled outside the transcript",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.checkpoint SET spans = '{0,0,5,0,4,20}'"
                " WHERE conversation_id = %(sales)s AND cardinality(spans) = 3"
                " AND spans[3] = 21"
            ],
            {"duplicated": 1, "missing": 1, "equal": 1},
            "sales-analysis: a message is in the transcript more than once",
            id="a message doubled in the transcript",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.message SET body = replace(body::text, 'e', 'ee')::json"
                " WHERE conversation_id = %(sales)s AND position = 5"
            ],
            {"missing": 1, "duplicated": 0, "equal": 1},
            "sales-analysis: message 5 is not the source's",
            id="a text altered",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.message SET body = (body::text || ' ')::json"
                " WHERE conversation_id = %(sales)s AND position = 5"
            ],
            {"equal": 1},
            "sales-analysis: message 5 is not the source's",
            id="white space in a text",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.message SET position = -1 WHERE conversation_id = %(sales)s AND position = 5",
                "UPDATE turnkeep.message SET position = 5 WHERE conversation_id = %(sales)s AND position = 6",
                "UPDATE turnkeep.message SET position = 6 WHERE conversation_id = %(sales)s AND position = -1",
            ],
            {"missing": 0, "duplicated": 0, "equal": 1},
            "sales-analysis: message 5 is not the source's",
            id="two messages changed places",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.checkpoint SET state = '{}'"
                " WHERE conversation_id = %(sales)s AND turn_index = 1 AND sub_step = 1"
            ],
            {"equal": 1},
            "sales-analysis: the state at 1.1 is not the source's",
            id="a state altered",
        ),
        pytest.param(
            [
                "UPDATE turnkeep.checkpoint SET tool_results = (replace(tool_results::text, ']', ',') ||"
                " ltrim(tool_results::text, '['))::json"
                " WHERE conversation_id = %(sales)s AND tool_results::text NOT LIKE '%%]%%]'"
            ],
            {"equal": 1},
            "sales-analysis: the list of tool results at",
            id="a tool result doubled",
        ),
        pytest.param(
            ["UPDATE turnkeep.branch SET branch = 1 WHERE conversation_id = %(sales)s"],
            {"equal": 1},
            "sales-analysis: it is not finished",
            id="another branch",
        ),
        pytest.param(
            [
                "INSERT INTO turnkeep.conversation (conversation_id, external_id, created_at)"
                " VALUES (gen_random_uuid(), 'stranger', now())"
            ],
            {"equal": 2},
            "stranger: nobody asked for this conversation",
            id="a conversation too many",
        ),
    ],
)
def test_the_check_finds(
    dsn: str, ledger: Ledger, statements: list[LiteralString], numbers: dict[str, int], problem: str
) -> None:
    findings = found_after(dsn, ledger, *statements)
    assert not findings.clean
    assert {name: getattr(findings, name) for name in numbers} == numbers
    assert any(problem in one for one in findings.problems), findings.problems


def test_the_check_finds_a_save_that_nobody_acknowledged(dsn: str, ledger: Ledger) -> None:
    ledger.acknowledged.remove(next(iter(ledger.intents)))
    findings = check(SCRIPTS, ledger, read(dsn))
    assert (findings.clean, findings.unacknowledged, findings.acknowledged) == (False, 1, SAVES - 1)


# -- the parts


def test_a_seed_plans_kills_of_all_kinds_in_an_order_of_its_own() -> None:
    plans = [plan(seed, 576) for seed in range(50)]
    assert plans[7] == plan(7, 576)
    assert len({tuple(kill.target for kill in kills) for kills in plans}) > 25
    for kills in plans:
        assert len(kills) >= 8
        assert {kill.target for kill in kills} == set(Target)
        assert [kill.after for kill in kills] == sorted(kill.after for kill in kills)
        assert kills[0].after > 0
        assert kills[-1].after < 576
        assert all(kill.hold >= 1 for kill in kills)


def test_a_ledger_comes_back_from_its_file(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger.jsonl")
    first, second = (Intent("c", 0, number, str(uuid.uuid4())) for number in range(2))
    file.write([asdict(first), asdict(second)])
    file.write([{"acknowledged": first.write_id}])
    file.close()
    again = read_ledger(file.path)
    assert again == file.ledger
    assert again.open() == [second]
    assert again.last_acknowledged() == {"c": (0, 0)}
    with pytest.raises(KeyError):
        again.take({"acknowledged": "never intended"})


def test_the_board_fits_a_small_terminal() -> None:
    board = Board(load_scripts())
    names = [script.external_id for script in load_scripts()]
    board.tell(PostgresStarted("18.6", Path("/tmp/somewhere"), 1.0))
    board.tell(WriterStarted(12, 4_194_304))
    for number in range(1, 10):
        board.tell(Holding(number, tuple(names)))
        board.tell(Killed(number, Target.BOTH, 6))
        board.tell(Recovered(number, 12.34))
    for name in names:
        board.tell(Acknowledged(name, (46, 10), True, 576))
    board.tell(Ended(names[0], "PermissionDeniedError: of some length, with the whole story"))
    output = io.StringIO()
    Console(file=output, width=80, height=24, force_terminal=True, color_system=None).print(board.render())
    lines = output.getvalue().splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(name) for line in lines) for name in names)
    assert "kill 9" in lines[-1]
    assert "…" not in output.getvalue()
