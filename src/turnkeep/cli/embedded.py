"""`turnkeep embedded`: the private Postgres looked at and stopped."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.options import Options, private_command
from turnkeep.cli.text import one_line, size

if TYPE_CHECKING:
    from turnkeep.embedded import EmbeddedStatus

app = typer.Typer(help="Look at the private Postgres, or stop it.", no_args_is_help=False)

DirectoryArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIRECTORY]",
        help="Where it lives; TURNKEEP_EMBEDDED_DIR, or the default place, if not given.",
        show_default=False,
    ),
]


@app.command("status")
@private_command
def status(options: Options, directory: DirectoryArgument = None) -> None:
    """Say where the private Postgres lives and whether it runs."""
    from turnkeep import embedded

    found = embedded.status(directory)
    if options.json:
        options.output.record(status_record(found))
        return
    for name, value in status_lines(found):
        options.output.line((f"{name:<11}", "dim"), one_line(value))


@app.command("stop")
@private_command
def stop(options: Options, directory: DirectoryArgument = None) -> None:
    """Stop the private Postgres now, whoever uses it. It starts again with its next use."""
    from turnkeep import embedded

    ran = embedded.stop(directory)
    where = embedded.status(directory).directory
    if options.json:
        options.output.record({"directory": str(where), "stopped": ran})
    elif not options.quiet:
        options.output.line(f"Stopped the Postgres in {where}." if ran else f"No Postgres runs in {where}.")


def status_lines(found: EmbeddedStatus) -> list[tuple[str, str]]:
    """What there is to say about the private Postgres, by name."""
    lines = [("directory", str(found.directory)), ("running", "yes" if found.running else "no")]
    if found.version is not None:
        lines.append(("version", f"PostgreSQL {found.version}"))
    if found.running:
        pids = f"server {found.postmaster_pid}, keeper {found.keeper_pid or 'gone'}"
        lines += [("processes", pids), ("socket", str(found.socket_dir))]
    if found.conninfo is not None:
        lines.append(("conninfo", found.conninfo))
    if found.server_user is not None:
        lines.append(("run by", found.server_user))
    lines.append(("size", size(found.data_bytes)))
    if found.log_path is not None:
        lines.append(("log", str(found.log_path)))
    return lines


def status_record(found: EmbeddedStatus) -> dict[str, object]:
    """The same for `--json`."""
    record = asdict(found)
    for name in ("directory", "socket_dir", "log_path"):
        record[name] = None if record[name] is None else str(record[name])
    return record
