"""`turnkeep doctor`: is everything as the guarantees need it, and if not, what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from turnkeep import settings
from turnkeep.cli.database import conninfo
from turnkeep.cli.embedded import status_lines, status_record
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, command
from turnkeep.cli.schema import revision
from turnkeep.cli.schema import status_record as schema_record
from turnkeep.cli.text import count, printable
from turnkeep.errors import DatabaseError, UnavailableError

if TYPE_CHECKING:
    from rich.text import Text

    from turnkeep.embedded import EmbeddedStatus
    from turnkeep.store import SchemaStatus
    from turnkeep.store._doctor import Examination, Leases, Rights, Server

Level = Literal["ok", "warn", "problem"]

_CONNECTING = 10.0
_SUPPORTED = range(15, 19)
_SLOW = 0.05  # seconds a round trip, of which a turn makes several
_STYLES = {"ok": "green", "warn": "bold yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do about it."""

    check: str
    level: Level
    message: str
    remedy: str | None = None


@command
def doctor(options: Options) -> Exit:
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
            findings += _examine(options, facts)
        except UnavailableError as error:
            code = Exit.UNREACHABLE
            remedy = "Start the server, or correct --dsn, TURNKEEP_DATABASE_URL, DATABASE_URL or PG*."
            findings.append(Finding("connection", "problem", str(error), remedy))
    if code is Exit.OK and any(finding.level == "problem" for finding in findings):
        code = Exit.FINDINGS
    _print(options, findings, facts)
    return code


def _examine(options: Options, facts: dict[str, Any]) -> Iterator[Finding]:
    from turnkeep.store import status
    from turnkeep.store._doctor import examine

    with conninfo(options) as database:
        found = asyncio.run(examine(database, options.schema, min(options.timeout, _CONNECTING)))
        facts["server"] = asdict(found.server)
        yield from server_findings(found.server)
        try:
            schema = status(database, options.schema, timeout=options.timeout)
        except UnavailableError:
            raise
        except DatabaseError as error:
            yield Finding("schema", "problem", f"can't be read: {error}", _grant(options.schema, found.server))
        else:
            facts["schema"] = schema_record(schema)
            yield from schema_findings(schema, found)
        if found.rights is not None:
            yield from rights_findings(found.rights, options.schema, found.server)
            yield index_finding(found.rights, options.schema)
        if found.leases is not None:
            facts["leases"] = asdict(found.leases)
            yield lease_finding(found.leases)


# -- what facts mean


def server_findings(server: Server) -> Iterator[Finding]:
    """Judge the server: connection, version, pooler, encoding, durability."""
    times = f"connected in {server.connected_in * 1000:.1f} ms, a round trip takes {server.round_trip * 1000:.1f} ms"
    where = f"{server.role_name} on {server.database_name} at {server.address}: {times}"
    slow = server.round_trip > _SLOW
    yield Finding("connection", "warn" if slow else "ok", where, "Run near the database." if slow else None)
    pooled = "through a pooler: nothing is prepared, nothing depends on a session" if server.pooled else "direct"
    yield Finding("pooler", "ok", pooled)

    major = server.version_number // 10_000
    if major in _SUPPORTED:
        yield Finding("version", "ok", f"PostgreSQL {server.version}")
    elif major < _SUPPORTED[0]:
        yield Finding("version", "problem", f"PostgreSQL {server.version} is too old", "Upgrade to 15 or newer.")
    else:
        newest = f"PostgreSQL {server.version} is newer than {_SUPPORTED[-1]}, up to which Turnkeep is tested"
        yield Finding("version", "warn", newest, "Look for a newer release of Turnkeep.")
    if server.encoding == "UTF8":
        yield Finding("encoding", "ok", "UTF8")
    else:
        remedy = "Create a database with ENCODING 'UTF8' TEMPLATE template0, and use that."
        yield Finding("encoding", "problem", f"{server.encoding} can't hold every text", remedy)
    if server.in_recovery or server.read_only:
        why = "is a standby" if server.in_recovery else "has default_transaction_read_only on"
        yield Finding("writable", "problem", f"the server {why}: nothing can be saved", "Connect to the primary.")
    yield from _durability(server)


def _durability(server: Server) -> Iterator[Finding]:
    """G1: nothing acknowledged is lost, under the durability that Postgres has by default."""
    if server.fsync == "off":
        remedy = "Set fsync = on: with it off a crash of the host can destroy the whole database (G1)."
        yield Finding("fsync", "problem", "off", remedy)
    if server.full_page_writes == "off":
        remedy = "Set full_page_writes = on, unless the file system never writes half a page (G1)."
        yield Finding("full_page_writes", "warn", "off", remedy)
    if server.synchronous_commit == "off":
        remedy = "Set synchronous_commit = on for this role or database: what was acknowledged can be lost (G1)."
        yield Finding("synchronous_commit", "problem", "off", remedy)
    if "off" not in (server.fsync, server.full_page_writes, server.synchronous_commit):
        settings_ = f"fsync {server.fsync}, full_page_writes {server.full_page_writes}"
        yield Finding("durability", "ok", f"{settings_}, synchronous_commit {server.synchronous_commit}")


def schema_findings(schema: SchemaStatus, found: Examination) -> Iterator[Finding]:
    """Judge the schema's release, and pgvector."""
    name = schema.schema
    missing = [f"{one.number:04} {one.name}" for one in schema.migrations if not one.applied]
    if not schema.exists:
        may = found.server.may_create
        remedy = "Run `turnkeep init`." if may else f"Have {_admin_grants(found.server)}, then run `turnkeep init`."
        yield Finding("schema", "problem", f"there is no schema {name!r}", remedy)
    elif missing:
        text = f"{name!r} lacks {count(len(missing), 'migration')}: {', '.join(missing)}"
        yield Finding("schema", "problem", text, "Run `turnkeep migrate`.")
    elif not schema.repeatable_current:
        text = f"{name!r} at revision {revision(schema)}; functions and views are of another release"
        yield Finding("schema", "problem", text, "Run `turnkeep migrate`.")
    else:
        yield Finding("schema", "ok", f"{name!r} at revision {revision(schema)}, functions and views are current")
    if schema.vector_version is None:
        where = "not created in this database" if found.server.vector_available else "not installed on the server"
        first = "" if found.server.vector_available else "have its package installed, "
        remedy = f"For search by meaning {first}run CREATE EXTENSION vector, then `turnkeep migrate`."
        yield Finding("pgvector", "warn", f"{where}: search is by text only", remedy.replace("  ", " "))
    elif schema.exists and not schema.vector_in_use:
        yield Finding("pgvector", "warn", f"{schema.vector_version}, not in use yet", "Run `turnkeep migrate`.")
    else:
        yield Finding("pgvector", "ok", schema.vector_version)


def rights_findings(rights: Rights, schema: str, server: Server) -> Iterator[Finding]:
    """Judge what the role may do in the schema."""
    grant = _grant(schema, server)
    missing = [] if rights.may_use else ["USAGE on the schema"]
    missing += [right for right in rights.missing_on_tables if not right.startswith("DELETE")]
    missing += [f"EXECUTE on {name}" for name in rights.missing_on_functions]
    if missing:
        yield Finding("rights", "problem", f"{server.role_name} lacks {_some(missing)}", grant)
    elif rights.missing_on_tables:
        text = f"{server.role_name} lacks {_some(rights.missing_on_tables)}: conversations can't be erased"
        yield Finding("rights", "warn", text, grant)
    else:
        yield Finding("rights", "ok", f"{server.role_name} may read, write and call all of {schema!r}")


def index_finding(rights: Rights, schema: str) -> Finding:
    """Judge the schema's indexes."""
    if not rights.invalid_indexes:
        return Finding("indexes", "ok", "all valid")
    names = ", ".join(f'"{schema}"."{name}"' for name in rights.invalid_indexes)
    return Finding("indexes", "problem", f"not valid: {_some(rights.invalid_indexes)}", f"Run REINDEX INDEX {names}.")


def lease_finding(leases: Leases) -> Finding:
    """Judge what is running, and what was interrupted."""
    live = f"{count(leases.live, 'branch', 'branches')} running"
    if not leases.expired and not leases.interrupted:
        return Finding("leases", "ok", f"{live}, nothing interrupted")
    expired = f"{leases.expired:,} with an expired lease, " if leases.expired else ""
    text = f"{live}, {expired}{leases.interrupted:,} in the middle of a turn that no live lease holds"
    return Finding("leases", "warn", text, "See `turnkeep ls --interrupted`; restore those turns and go on.")


def embedded_findings(found: EmbeddedStatus) -> Iterator[Finding]:
    """Tell where the private Postgres lives."""
    if found.version is None:
        remedy = "Run `turnkeep init --dsn embedded`."
        yield Finding("embedded", "problem", f"there is none in {found.directory} yet", remedy)
        return
    words = [value if name == "directory" else f"{name} {value}" for name, value in status_lines(found)]
    yield Finding("embedded", "ok", ", ".join(words))


def _grant(schema: str, server: Server) -> str:
    to = f'TO "{server.role_name}"'
    return (
        f'Have the schema\'s owner run: GRANT USAGE ON SCHEMA "{schema}" {to}; '
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" {to}; '
        f'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}" {to};'
    )


def _admin_grants(server: Server) -> str:
    return f'the database\'s owner run: GRANT CREATE ON DATABASE "{server.database_name}" TO "{server.role_name}";'


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


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
