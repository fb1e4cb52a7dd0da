"""The command line put together: commands, common options, usage errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

import turnkeep
from turnkeep.cli import (
    archive,
    branches,
    demo,
    details,
    diff,
    doctor,
    embed,
    embedded,
    erase,
    grant,
    ls,
    metrics,
    post,
    prune,
    resume,
    schema,
    search,
    show,
    stats,
    transfer,
    worker,
)
from turnkeep.cli import run as chat
from turnkeep.cli.failures import EXPLAINED, Exit, stop_writing
from turnkeep.cli.options import (
    DsnOption,
    JsonOption,
    NoColorOption,
    Options,
    QuietOption,
    SchemaOption,
    TimeoutOption,
    guarded,
)
from turnkeep.cli.output import Output

# Typer takes its usage errors from click, or brings them along, as the release may be.
_UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])

_EPILOG = "Exit codes: " + "; ".join(f"{int(code)} {words}" for code, words in EXPLAINED.items()) + "."

app = typer.Typer(
    name="turnkeep",
    help="Agent conversations that survive kill -9, in the Postgres you already run.",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    # Boxes and colours are for a terminal.
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
)

# Commands, in the order of the help. Their modules are light: each loads what it works with when it runs.
app.command("init")(schema.init)
app.command("migrate")(schema.migrate)
app.command("doctor")(doctor.doctor)
app.command("run")(chat.run)
app.command("worker")(worker.worker)
app.command("embed")(embed.embed)
app.command("post")(post.post)
app.command("resume")(resume.resume)
app.command("ls")(ls.ls)
app.command("show")(show.show)
app.command("search")(search.search)
app.command("diff")(diff.diff)
app.command("fork")(branches.fork)
app.command("switch")(branches.switch)
app.add_typer(branches.app, name="branch")
app.command("edit")(details.edit)
app.command("end")(details.end)
app.command("reopen")(details.reopen)
app.command("export")(transfer.export)
app.command("import")(transfer.import_)
app.command("archive")(archive.archive)
app.command("unarchive")(archive.unarchive)
app.command("erase")(erase.erase)
app.command("prune")(prune.prune)
app.command("retention")(prune.retention)
app.command("grant")(grant.grant)
app.command("stats")(stats.stats)
app.command("metrics")(metrics.metrics)
app.add_typer(embedded.app, name="embedded")
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnkeep {turnkeep.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    dsn: DsnOption = None,
    schema: SchemaOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    no_color: NoColorOption = False,
    timeout: TimeoutOption = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Agent conversations that survive kill -9, in the Postgres you already run."""

    def take() -> None:
        context.obj = Options().updated(
            dsn=dsn, schema=schema, json=json, quiet=quiet, no_color=no_color, timeout=timeout
        )

    if code := guarded(Output(json=json), take):
        raise typer.Exit(code)
    if context.invoked_subcommand is None:
        if context.obj != Options():
            raise typer.BadParameter("a command is needed as well", context)
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run a command line and give its exit code."""
    _prepare_streams()
    try:
        code = app(args=list(arguments), prog_name="turnkeep", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        return _tell_usage(error, arguments)
    except typer.Abort:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        stop_writing()
        return Exit.BROKEN_PIPE
    except OSError as error:
        stop_writing()
        Output(json="--json" in arguments).error("OSError", f"can't write: {error.strerror or error}", Exit.FAILURE)
        return Exit.FAILURE
    return code if isinstance(code, int) else Exit.OK


def _prepare_streams() -> None:
    """See to it that printing can't fail for what is printed, or for want of a stream."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the process's life
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _tell_usage(error: Any, arguments: Sequence[str]) -> Exit:
    where = error.ctx.command_path if error.ctx is not None else "turnkeep"
    message = f"{error.format_message().rstrip('.')}. Try `{where} --help`."
    Output(json="--json" in arguments).error("UsageError", message, Exit.USAGE)
    return Exit.USAGE
