"""What `turnkeep doctor` makes of the schema: its release, rights, indexes, and what was interrupted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from turnkeep.cli.doctor_findings import Finding, some
from turnkeep.cli.schema import revision
from turnkeep.cli.text import ago, count

if TYPE_CHECKING:
    from turnkeep.store import SchemaStatus
    from turnkeep.store._doctor import Leases, Rights, Server


def schema_findings(schema: SchemaStatus, server: Server) -> Iterator[Finding]:
    """Judge the schema's release, and pgvector."""
    name = schema.schema
    missing = [f"{one.number:04} {one.name}" for one in schema.migrations if not one.applied]
    if not schema.exists:
        may = server.may_create
        remedy = "Run `turnkeep init`." if may else f"Have {_admin_grants(server)}, then run `turnkeep init`."
        yield Finding("schema", "problem", f"there is no schema {name!r}", remedy)
    elif missing:
        text = f"{name!r} lacks {count(len(missing), 'migration')}: {', '.join(missing)}"
        yield Finding("schema", "problem", text, "Run `turnkeep migrate`.")
    elif schema.missing:
        remedy = "Run `turnkeep migrate`, which puts views and the column of embeddings back, and says what it can't."
        yield Finding("schema", "problem", f"{name!r} lacks {some(list(schema.missing))}", remedy)
    elif not schema.repeatable_current:
        text = f"{name!r} at revision {revision(schema)}; functions and views are of another release"
        yield Finding("schema", "problem", text, "Run `turnkeep migrate`.")
    else:
        yield Finding("schema", "ok", f"{name!r} at revision {revision(schema)}, functions and views are current")
    if schema.vector_version is None:
        where = "not created in this database" if server.vector_available else "not installed on the server"
        first = "" if server.vector_available else "have its package installed, "
        remedy = f"For search by meaning {first}run CREATE EXTENSION vector, then `turnkeep migrate`."
        yield Finding("pgvector", "warn", f"{where}: search is by text only", remedy.replace("  ", " "))
    elif schema.exists and not schema.vector_in_use:
        yield Finding("pgvector", "warn", f"{schema.vector_version}, not in use yet", "Run `turnkeep migrate`.")
    else:
        yield Finding("pgvector", "ok", schema.vector_version)


def rights_findings(rights: Rights, schema: str, server: Server) -> Iterator[Finding]:
    """Judge what the role may do in the schema."""
    remedy = grant(schema, server)
    if rights.may_use and rights.reads_only:
        text = f"{server.role_name} may read all of {schema!r} and write nothing: a reader"
        role = shlex.quote(server.role_name)
        yield Finding("rights", "ok", text, f"To run agents, have the owner run `turnkeep grant --writer {role}`.")
        return
    missing = [] if rights.may_use else ["USAGE on the schema"]
    missing += [right for right in rights.missing_on_tables if not right.startswith("DELETE")]
    missing += [f"EXECUTE on {name}" for name in rights.missing_on_functions]
    if missing:
        yield Finding("rights", "problem", f"{server.role_name} lacks {some(missing)}", remedy)
    elif rights.missing_on_tables:
        text = f"{server.role_name} lacks {some(rights.missing_on_tables)}: conversations can't be erased"
        yield Finding("rights", "warn", text, remedy)
    else:
        yield Finding("rights", "ok", f"{server.role_name} may read, write and call all of {schema!r}")


def index_finding(rights: Rights, schema: str) -> Finding:
    """Judge the schema's indexes."""
    if not rights.invalid_indexes:
        return Finding("indexes", "ok", "all valid")
    names = ", ".join(f'"{schema}"."{name}"' for name in rights.invalid_indexes)
    return Finding("indexes", "problem", f"not valid: {some(rights.invalid_indexes)}", f"Run REINDEX INDEX {names}.")


def lease_finding(leases: Leases, now: datetime) -> Finding:
    """Judge what is running, and what was interrupted."""
    live = f"{count(leases.live, 'branch', 'branches')} running under a live lease"
    if not leases.expired and not leases.interrupted:
        return Finding("leases", "ok", f"{live}, nothing interrupted")
    if leases.oldest_expired is None:
        text = f"{live}; {leases.interrupted:,} in the middle of a turn that no live lease holds"
        return Finding(
            "leases", "warn", text, "See `turnkeep ls --interrupted`; `turnkeep resume` gives them to workers."
        )
    first = ago(leases.oldest_expired, now)
    text = (
        f"{live}; {leases.expired:,} whose worker has let its lease expire, the first {first}; "
        f"{leases.interrupted:,} in the middle of a turn that no live lease holds"
    )
    agents = some(list(leases.agents_of_expired)) or "those conversations, which have no agent"
    return Finding("leases", "warn", text, f"Run `turnkeep worker` for {agents}; see `turnkeep ls --interrupted`.")


def schema_clock_finding(leases: Leases, schema: str) -> Iterator[Finding]:
    """Judge the schema's own clock, if a test has replaced it."""
    if abs(leases.clock_ahead) > 1:
        from turnkeep.store._doctor import real_clock

        yield Finding(
            "clock",
            "problem",
            f"that of schema {schema!r} is {leases.clock_ahead:+.0f} s off the server's: a test has put it forward",
            f"Run {real_clock(schema)}.",
        )


def grant(schema: str, server: Server) -> str:
    to = f'TO "{server.role_name}"'
    return (
        f"Have the schema's owner run `turnkeep grant --writer {shlex.quote(server.role_name)}`, or: "
        f'GRANT USAGE ON SCHEMA "{schema}" {to}; '
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" {to}; '
        f'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}" {to};'
    )


def _admin_grants(server: Server) -> str:
    return f'the database\'s owner run: GRANT CREATE ON DATABASE "{server.database_name}" TO "{server.role_name}";'
