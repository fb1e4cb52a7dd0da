"""`turnkeep init` and `turnkeep migrate`: the schema made, brought up to date, looked at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.database import conninfo
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, command
from turnkeep.cli.output import Column
from turnkeep.errors import InvalidInputError, SchemaError

if TYPE_CHECKING:
    from turnkeep.store import SchemaStatus

_CONNECTING = 10.0


@command
def init(
    options: Options,
    dimensions: Annotated[
        int | None,
        typer.Option(
            "--dimensions", min=1, max=16_000, metavar="N", help="Of the embeddings that a new schema holds; 768."
        ),
    ] = None,
) -> None:
    """Make the schema, or bring it up to date; harmless when it is."""
    with conninfo(options) as database:
        have = _status(options, database).dimensions
        if dimensions is not None and have not in (None, dimensions):
            raise InvalidInputError(
                f"--dimensions: schema {options.schema!r} holds embeddings of {have:,} dimensions: `turnkeep migrate "
                f"--dimensions {dimensions}` drops them and makes room for others"
            )
        _change(options, database, dimensions)


@command
def migrate(
    options: Options,
    status: Annotated[bool, typer.Option("--status", help="Change nothing; say what there is to do.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; list what would be done.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Change nothing; print the SQL, for an administrator.")] = False,
    dimensions: Annotated[
        int | None,
        typer.Option(
            "--dimensions",
            min=1,
            max=16_000,
            metavar="N",
            help="Hold embeddings of so many dimensions. Where that is another number, those there are are dropped, "
            "and made anew by `turnkeep embed`.",
        ),
    ] = None,
) -> Exit | None:
    """Bring an existing schema up to date."""
    if status + dry_run + sql > 1:
        raise InvalidInputError("--status, --dry-run and --sql: only one of them at a time")
    with conninfo(options) as database:
        if status:
            return _print_status(options, _status(options, database))
        if dry_run or sql:
            (_print_plan if dry_run else _print_script)(options, database, dimensions)
            return None
        if not _status(options, database).exists:
            raise SchemaError(f"there is no schema {options.schema!r} to bring up to date: `turnkeep init` makes it")
        _change(options, database, dimensions)
    return None


def _print_plan(options: Options, database: str, dimensions: int | None) -> None:
    from turnkeep.store import plan

    _check_reachable(options, database)
    steps = [step.what for step in plan(database, options.schema, dimensions=dimensions, timeout=options.timeout)]
    if options.json:
        options.output.record({"schema": options.schema, "would": steps})
        return
    for step in steps:
        options.output.line(f"would {step}")
    if not steps:
        options.output.line(f"Schema {options.schema!r}: already up to date.")


def _print_script(options: Options, database: str, dimensions: int | None) -> None:
    from turnkeep.store import script

    _check_reachable(options, database)
    text = script(database, options.schema, dimensions=dimensions, timeout=options.timeout)
    if options.json:
        options.output.record({"schema": options.schema, "sql": text})
    else:
        options.output.text(text.rstrip("\n"))


def _status(options: Options, database: str) -> SchemaStatus:
    from turnkeep.store import status

    _check_reachable(options, database)
    return status(database, options.schema, timeout=options.timeout)


def _check_reachable(options: Options, database: str) -> None:
    from turnkeep.store._doctor import check_reachable

    asyncio.run(check_reachable(database, options.schema, min(options.timeout, _CONNECTING)))


def _change(options: Options, database: str, dimensions: int | None) -> None:
    from turnkeep.store import migrate as bring_up_to_date

    before = _status(options, database)
    after = bring_up_to_date(database, options.schema, dimensions=dimensions, timeout=options.timeout)
    done = _done(before, after)
    output = options.output
    if options.json:
        output.record({**status_record(after), "done": done})
    elif not options.quiet:
        what = ", ".join(done) if done else "already up to date"
        output.line(f"Schema {after.schema!r}: {what}. Revision {revision(after)}, {_vector(after)}.")
    if after.vector_hint:
        output.note(f"Search is by text only: {after.vector_hint}.")


def _done(before: SchemaStatus, after: SchemaStatus) -> list[str]:
    done = [] if before.exists else ["schema created"]
    applied = {one.number for one in before.migrations if one.applied}
    done += [f"migration {one.number} ({one.name}) applied" for one in after.migrations if one.number not in applied]
    if not before.repeatable_current:
        done.append("functions and views put in place")
    if before.dimensions not in (None, after.dimensions):
        done.append(f"embeddings of {before.dimensions:,} dimensions dropped: `turnkeep embed` makes them anew")
    if before.vector_version is None and after.vector_version is not None:
        done.append("extension pgvector created")
    return done


def _print_status(options: Options, status: SchemaStatus) -> Exit:
    output = options.output
    if options.json:
        output.record(status_record(status))
    else:
        rows = [(f"{one.number:04}", one.name, _state(one.applied)) for one in status.migrations]
        rows.append(("", "functions and views", _state(status.repeatable_current)))
        output.table((Column("migration"), Column("name"), Column("state")), rows)
        output.line()
        output.line(f"Schema {status.schema!r}: {_summary(status)}, {_vector(status)}.")
    return Exit.OK if status.current else Exit.FINDINGS


def _state(applied: bool) -> tuple[str, str]:
    return ("applied", "green") if applied else ("to do", "bold yellow")


def _summary(status: SchemaStatus) -> str:
    if not status.exists:
        return "not there, `turnkeep init` makes it"
    return "up to date" if status.current else "`turnkeep migrate` brings it up to date"


def _vector(status: SchemaStatus) -> str:
    if status.vector_version is None:
        return "without pgvector"
    if not status.vector_in_use:
        return f"pgvector {status.vector_version} not in use yet"
    return f"pgvector {status.vector_version}, embeddings of {status.dimensions or 0:,} dimensions"


def revision(status: SchemaStatus) -> int:
    """The newest migration that a schema has; 0 if it has none."""
    return max((one.number for one in status.migrations if one.applied), default=0)


def status_record(status: SchemaStatus) -> dict[str, Any]:
    """A schema's status for `--json`."""
    return {
        "schema": status.schema,
        "exists": status.exists,
        "current": status.current,
        "revision": revision(status),
        "migrations": [{"number": m.number, "name": m.name, "applied": m.applied} for m in status.migrations],
        "functions_current": status.repeatable_current,
        "vector_version": status.vector_version,
        "vector_in_use": status.vector_in_use,
        "vector_hint": status.vector_hint,
        "dimensions": status.dimensions,
    }
