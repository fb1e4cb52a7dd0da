"""`turnkeep doctor`: is everything as the guarantees need it, and if not, what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep import settings
from turnkeep.cli.database import conninfo
from turnkeep.cli.doctor_findings import Finding
from turnkeep.cli.doctor_keeping import archiver_finding, health_findings, statements_finding, vacuum_findings
from turnkeep.cli.doctor_schema import (
    grant,
    index_finding,
    lease_finding,
    rights_findings,
    schema_clock_finding,
    schema_findings,
)
from turnkeep.cli.doctor_server import server_findings
from turnkeep.cli.embedded import status_record
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, command
from turnkeep.cli.schema import status_record as schema_record
from turnkeep.cli.text import count, printable, size
from turnkeep.errors import DatabaseError, UnavailableError

if TYPE_CHECKING:
    from rich.text import Text

    from turnkeep.embedded import EmbeddedStatus

_CONNECTING = 10.0
_STYLES = {"ok": "green", "warn": "bold yellow", "problem": "bold red"}


@command
def doctor(
    options: Options,
    deep: Annotated[bool, typer.Option("--deep", help="Look at every conversation, however many there are.")] = False,
) -> Exit:
    """Check the database, and say how to mend it.

    Exits with 6 if a finding is a problem, with 0 if there are only warnings, and with 7 if the database can't
    be reached. Changes nothing.
    """
    facts: dict[str, Any] = {}
    findings: list[Finding] = []
    code = Exit.OK
    if settings.database(options.dsn) == settings.EMBEDDED:
        from turnkeep import embedded

        found = embedded.status()
        facts["embedded"] = status_record(found)
        findings += embedded_findings(found)
    if not any(finding.level == "problem" for finding in findings):
        try:
            findings += _examine(options, facts, deep=deep)
        except UnavailableError as error:
            code = Exit.UNREACHABLE
            remedy = "Start the server, or correct --dsn, TURNKEEP_DATABASE_URL, DATABASE_URL or PG*."
            findings.append(Finding("connection", "problem", str(error), remedy))
    if code is Exit.OK and any(finding.level == "problem" for finding in findings):
        code = Exit.FINDINGS
    _print(options, findings, facts)
    return code


def _examine(options: Options, facts: dict[str, Any], *, deep: bool) -> Iterator[Finding]:
    from turnkeep.store import status
    from turnkeep.store._doctor import examine

    with conninfo(options) as database:
        found = asyncio.run(examine(database, options.schema, min(options.timeout, _CONNECTING), deep=deep))
        now = datetime.now(UTC) + timedelta(seconds=found.server.clock_ahead)
        facts["server"] = asdict(found.server)
        facts["settings"] = {name: asdict(setting) for name, setting in found.settings.items()}
        facts["cluster"] = asdict(found.cluster)
        facts["observed"] = asdict(found.observed)
        yield from server_findings(found)
        yield archiver_finding(found.observed, now)
        yield statements_finding(found.observed)
        try:
            schema = status(database, options.schema, timeout=options.timeout)
        except UnavailableError:
            raise
        except DatabaseError as error:
            yield Finding("schema", "problem", f"can't be read: {error}", grant(options.schema, found.server))
        else:
            facts["schema"] = schema_record(schema)
            yield from schema_findings(schema, found.server)
        if found.rights is not None:
            yield from rights_findings(found.rights, options.schema, found.server)
            yield index_finding(found.rights, options.schema)
        if found.leases is not None:
            facts["leases"] = asdict(found.leases)
            yield lease_finding(found.leases, datetime.now(UTC))
            yield from schema_clock_finding(found.leases, options.schema)
        if found.health is not None:
            facts["health"] = asdict(found.health)
            yield from vacuum_findings(found.health.tables, found.observed, options.schema, now)
            yield from health_findings(found.health, options.schema, now)


def embedded_findings(found: EmbeddedStatus) -> Iterator[Finding]:
    """Tell where the private Postgres lives."""
    if found.version is None:
        remedy = "Run `turnkeep init --dsn embedded`."
        yield Finding("embedded", "problem", f"there is none in {found.directory} yet", remedy)
        return
    started = "" if found.running else "; it was not running, and runs for this"
    yield Finding("embedded", "ok", f"{found.directory}, PostgreSQL {found.version}, {size(found.data_bytes)}{started}")


# -- printing


def _print(options: Options, findings: Sequence[Finding], facts: dict[str, Any]) -> None:
    output = options.output
    levels = [finding.level for finding in findings]
    worst = next(level for level in ("problem", "warn", "ok") if level in levels)
    if options.json:
        output.record({"level": worst, "findings": [asdict(finding) for finding in findings], **facts})
        return
    shown = [finding for finding in findings if finding.level != "ok" or not options.quiet]
    output.paragraphs([_shown(finding) for finding in shown])
    if not options.quiet:
        problems, warnings = levels.count("problem"), levels.count("warn")
        output.line()
        output.line("All is well." if worst == "ok" else f"{count(problems, 'problem')}, {count(warnings, 'warning')}.")


def _shown(finding: Finding) -> tuple[Text, Text, Text]:
    from rich.text import Text

    said = Text(printable(finding.message))
    if finding.remedy:
        said.append("\n" + printable(finding.remedy), "cyan")
    return Text(finding.level, _STYLES[finding.level]), Text(finding.check, "bold"), said
