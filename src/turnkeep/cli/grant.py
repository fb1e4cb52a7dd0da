"""`turnkeep grant`: the rights of a role that reads, or that agents and workers run as."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.database import conninfo
from turnkeep.cli.options import Options, command
from turnkeep.cli.text import one_line
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.store._grants import Change, Kind

_MAY = {
    "reader": "may read everything, and write nothing",
    "writer": "may do all that stores, workers and commands do, and change no schema",
}


@command
def grant(
    options: Options,
    reader: Annotated[
        list[str] | None, typer.Option("--reader", metavar="ROLE", help="A role that reads: dashboards, plain SQL.")
    ] = None,
    writer: Annotated[
        list[str] | None, typer.Option("--writer", metavar="ROLE", help="A role as whom agents and workers run.")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make a role that is missing, with LOGIN and no password.")
    ] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take the rights back instead.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Change nothing; print the SQL, for an administrator.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as --sql.")] = False,
) -> None:
    """Give a role the rights it needs, and no more.

    To be run by the tables' owner, once: what later releases add is included. Run again, it mends what is missing.
    Indexes over vectors (`turnkeep search --index`) and migrations stay the owner's: no grant allows them.
    """
    wanted: list[tuple[str, Kind]] = [(role, "reader") for role in reader or ()]
    wanted += [(role, "writer") for role in writer or ()]
    if not wanted:
        raise InvalidInputError("which role? --reader NAME or --writer NAME")
    if create and revoke:
        raise InvalidInputError("--create and --revoke: only one of them at a time")
    from turnkeep.store._grants import grant as change

    with conninfo(options) as database:
        for role, kind in wanted:
            done = change(
                database,
                options.schema,
                role,
                kind,
                create=create,
                revoke=revoke,
                dry_run=sql or dry_run,
                timeout=options.timeout,
            )
            _print(options, done, dry_run=sql or dry_run, revoke=revoke)


def _print(options: Options, done: Change, *, dry_run: bool, revoke: bool) -> None:
    output = options.output
    if options.json:
        output.record({**asdict(done), "changed": not dry_run})
    elif dry_run:
        output.text("\n".join(done.statements))
    elif not options.quiet:
        now = "has no rights of ours any more" if revoke else _MAY[done.kind]
        output.line(f"Role {one_line(done.role)!r} {now}.")
        if done.missing:
            output.note("It has no password yet: \\password in psql sets one.")
