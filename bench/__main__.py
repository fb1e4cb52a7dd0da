"""`python -m bench`: the table of ratios, and the same as JSON in bench/results/."""

from __future__ import annotations

import asyncio
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from bench import keeping, running, writing
from bench.scene import Finding, new_database
from tests.acceptance.pgbouncer import PgBouncer
from turnkeep import embedded
from turnkeep.embedded import EmbeddedPostgres

RESULTS = Path(__file__).parent / "results"


@contextmanager
def server() -> Iterator[str]:
    """A Postgres of the run's own, with its defaults: fsync on."""
    directory = Path(tempfile.mkdtemp(prefix="turnkeep-bench-"))
    directory.chmod(0o755)
    with EmbeddedPostgres.start(directory / "postgres") as running:
        yield running.conninfo
    embedded.stop(directory / "postgres")
    shutil.rmtree(directory)


async def measure(conninfo: str, console: Console) -> list[Finding]:
    """All measures, one after the other, each in a database of its own."""
    findings: list[Finding] = []

    def report(*found: Finding) -> None:
        findings.extend(found)
        for finding in found:
            console.print(f"{finding.what}: {finding.ratio:.2f} ({finding.detail})", highlight=False)

    report(keeping.importing())
    report(await writing.direct(new_database(conninfo)))
    report(await writing.late(new_database(conninfo)))
    report(await writing.late(new_database(conninfo), 10_000))
    report(await writing.forked(new_database(conninfo)))
    with PgBouncer(new_database(conninfo), pool_size=4) as pooler:
        report(await writing.pooled(pooler.dsn()))
    report(await writing.many(new_database(conninfo)))
    report(await writing.under_snapshot(new_database(conninfo)))
    report(*await keeping.storage_and_log(new_database(conninfo)))
    report(await keeping.restoring(new_database(conninfo)))
    report(*await writing.full_snapshots(new_database(conninfo)))
    report(await running.overhead(new_database(conninfo)))
    report(await running.takeover(new_database(conninfo)))
    return findings


def main() -> None:
    """Measure, print the table on stdout and leave the numbers beside it."""
    progress = Console(stderr=True)
    with server() as conninfo:
        with psycopg.connect(conninfo) as connection:
            row = connection.execute("SELECT version(), current_setting('fsync')").fetchone()
            assert row is not None
        findings = asyncio.run(measure(conninfo, progress))
    table = Table(title=f"{row[0].split(' on ')[0]}, fsync {row[1]}, {platform.machine()}")
    for column in ("what", "ratio", "budget", "", "detail"):
        table.add_column(column)
    for finding in findings:
        bound = "" if finding.budget is None else f"{'≥' if finding.at_least else '≤'} {finding.budget:g}"
        verdict = {None: "", True: "met", False: "MISSED"}[finding.met]
        table.add_row(finding.what, f"{finding.ratio:.2f}", bound, verdict, finding.detail)
    Console().print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps([asdict(finding) for finding in findings], indent=1, ensure_ascii=False))
    progress.print(f"the same as JSON: {path}")


if __name__ == "__main__":
    main()
