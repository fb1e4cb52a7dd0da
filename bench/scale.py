"""A million messages: how long each command takes, in how much memory, and by what plans. `make scale`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

import turnkeep
from bench.population import MESSAGES, Population, populate
from bench.population import words as vocabulary
from turnkeep.embedded import EmbeddedPostgres

COMMAND = str(Path(sys.executable).with_name("turnkeep"))
# Tables that are never read from one end to the other, whatever is asked.
LARGE = ("message", "checkpoint", "document", "request")
# Settings under which a server writes down the plan of everything, that of statements inside functions included.
EXPLAINED = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
}
_PATIENCE = 60.0  # seconds that the server may take to write a plan down
_SCAN = re.compile(rf"Seq Scan on (?:\w+\.)?({'|'.join(LARGE)})\b")


@dataclass(frozen=True)
class Measured:
    """What a command took: seconds, megabytes at its peak, and the large tables that it read from end to end."""

    what: str
    seconds: float
    megabytes: float
    bytes_out: int
    scanned: tuple[str, ...] = ()


# What is measured, in the words of the command line; those that this release does not have are left out. ONE is a
# conversation, COMMON a word that is in most texts, RARE one that is in few. Behind each: whether it may read a large
# table from end to end, because that is what it is asked for.
COMMANDS: tuple[tuple[str, bool], ...] = (
    ("ls", False),
    ("ls --agent agent-7", False),
    ("ls --interrupted", False),
    ("ls --json --limit 1000", False),
    ("show ONE", False),
    ("show ONE --context", False),
    ("stats", False),
    ("doctor", False),
    ("doctor --deep", True),
    ("search COMMON --limit 10", False),
    ("search RARE --limit 10", False),
    ("search RARE --agent agent-7 --limit 10", False),
    ("prune --keep last-per-turn --older-than 30d --dry-run", True),
    ("archive --ended-before 30d --dry-run", False),
    ("export ONE", False),
    ("export --all", True),
)


def main() -> None:
    """Make the database, unless one is named that has it, and measure."""
    arguments = argparse.ArgumentParser(prog="python -m bench.scale", description=main.__doc__)
    arguments.add_argument("--conversations", type=int, default=20_000, help=f"of {MESSAGES} messages each")
    arguments.add_argument("--vectors", type=int, default=2_000)
    arguments.add_argument("--directory", type=Path, help="keep the server here, and use what is there")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnkeep-scale-") as passing:
        place = given.directory or Path(passing)
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
        with EmbeddedPostgres.start(place / "postgres") as server:
            prepare(server.conninfo, Population(given.conversations, given.vectors))
            for one in measured(server.conninfo, place / "postgres" / "log"):
                show(one)


def prepare(dsn: str, population: Population) -> None:
    """Fill the database, unless it is full, and let it explain itself."""
    turnkeep.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        ((there,),) = connection.execute("SELECT count(*) FROM turnkeep.conversation").fetchall()
    if not there:
        start = time.perf_counter()
        populate(dsn, population)
        seconds = time.perf_counter() - start
        print(
            f"{population.messages:,} messages in {population.conversations:,} conversations, made in {seconds:.0f} s"
        )
    check_sample(dsn)


@contextmanager
def explained(dsn: str) -> Iterator[None]:
    """Let new sessions write the plan of everything they do into the server's log meanwhile."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        database = f'ALTER DATABASE "{connection.info.dbname}"'
        for name, value in EXPLAINED.items():
            connection.execute(f"{database} SET {name} = {value}".encode())
        try:
            yield
        finally:
            for name in EXPLAINED:
                connection.execute(f"{database} RESET {name}".encode())


def check_sample(dsn: str) -> None:
    """See that what was made is what a store makes: a sample of it is restored whole, and gone on with."""

    async def check() -> None:
        async with turnkeep.open(dsn) as store:
            for summary in await store.conversations(limit=50):
                restored = await store.restore(summary.conversation_id)
                assert len(restored.messages) >= MESSAGES - 1, restored
                assert restored.state is not None
            branch = await store.conversation("ticket-10")
            await branch.begin_turn({"role": "user", "content": "once more"})
            await branch.save([{"role": "assistant"}], final=True)

    asyncio.run(check())


def measured(dsn: str, logs: Path, commands: Sequence[tuple[str, bool]] = COMMANDS) -> Iterator[Measured]:
    """Run each command that there is, and measure it; then once more for its plans, if it is to read few rows."""
    with psycopg.connect(dsn) as connection:
        ((one,),) = connection.execute("SELECT conversation_id FROM turnkeep.conversation LIMIT 1 OFFSET 77").fetchall()
    named = {"ONE": str(one), "COMMON": vocabulary()[2], "RARE": vocabulary()[2_500]}
    for text, reads_all in commands:
        words = [named.get(word, word) for word in text.split()]
        if subprocess.run([COMMAND, words[0], "--help"], capture_output=True, check=False).returncode:
            continue
        found = run(text, words, dsn)
        if not reads_all:
            with explained(dsn), plans(dsn, logs) as scanned:
                run(text, words, dsn)
                found = replace(found, scanned=scanned())
        yield found
    found = scrape(dsn)
    with explained(dsn), plans(dsn, logs) as scanned:
        scrape(dsn)
        yield replace(found, scanned=scanned())


def run(text: str, words: Sequence[str], dsn: str) -> Measured:
    """Run a command to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            [COMMAND, *words], env=os.environ | {"TURNKEEP_DATABASE_URL": dsn}, stdout=out, stderr=err
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        assert process.returncode in (0, 6), (text, err.read().decode())
        return Measured(text, seconds, used.ru_maxrss / 1024, out.seek(0, os.SEEK_END))


def scrape(dsn: str) -> Measured:
    """Take one look, as `turnkeep metrics` does for a scrape."""
    from turnkeep.store._stats import read_stats

    async def look() -> int:
        async with turnkeep.open(dsn, pool_size=1) as store:
            return len(str(await read_stats(store, agents=20)))

    start = time.perf_counter()
    length = asyncio.run(look())
    seconds = time.perf_counter() - start
    return Measured("metrics, a scrape", seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, length)


@contextmanager
def plans(dsn: str, logs: Path) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Give what tells, from the logs of what happens meanwhile, which large tables were read from end to end."""
    before = {log: log.stat().st_size for log in logs.glob("*.log")}

    def written() -> str:
        text = ""
        for log in sorted(logs.glob("*.log")):
            with log.open(errors="replace") as file:
                file.seek(before.get(log, 0))
                text += file.read()
        return text

    def scanned() -> tuple[str, ...]:
        last = uuid.uuid4().hex  # what is asked last is written last
        with psycopg.connect(dsn) as connection:
            connection.execute(f"SELECT '{last}'".encode())
        deadline = time.monotonic() + _PATIENCE
        while last not in (text := written()):
            assert time.monotonic() < deadline, "the server writes no plans"
            time.sleep(0.02)
        return tuple(sorted(set(_SCAN.findall(text))))

    yield scanned


def show(one: Measured) -> None:
    """Print it for people, or for programs where stdout is no terminal."""
    if not sys.stdout.isatty():
        print(json.dumps(one.__dict__), flush=True)
        return
    scans = f"  reads all of {', '.join(one.scanned)}" if one.scanned else ""
    print(f"{one.what:<55} {one.seconds:7.2f} s {one.megabytes:7.0f} MB {one.bytes_out:>12,} bytes{scans}")


if __name__ == "__main__":
    main()
