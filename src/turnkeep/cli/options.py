"""The options that every command takes, before or after its name."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_type_hints

import typer

from turnkeep.cli.failures import Exit, exit_code, stop_writing
from turnkeep.cli.output import Output
from turnkeep.errors import InvalidInputError, TurnkeepError
from turnkeep.settings import DEFAULT_SCHEMA

_PANEL = "Options of every command"
_LONGEST = 86_400.0

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        rich_help_panel=_PANEL,
        help='The database, or "embedded". Otherwise TURNKEEP_DATABASE_URL, DATABASE_URL or PG* name it.',
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="NAME", rich_help_panel=_PANEL, help=f"The schema; {DEFAULT_SCHEMA} if not given."
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=_PANEL, help="Print JSON: one object, or for a list one object a line."),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", rich_help_panel=_PANEL, help="Print data and errors only, no notes."),
]
NoColorOption = Annotated[
    bool,
    typer.Option("--no-color", rich_help_panel=_PANEL, help="Print without colours, as with NO_COLOR set."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        rich_help_panel=_PANEL,
        help="Give up on the database after this; 30 if not given.",
    ),
]

TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant", metavar="NAME", help="See this tenant's conversations only; ids are looked up, and made, in it."
    ),
]

RedactOption = Annotated[
    str | None,
    typer.Option(
        "--redact",
        metavar="HOOK",
        help="Store what this function makes of each value, as module:attribute, such as app:redact.",
    ),
]
EmbeddingsOption = Annotated[
    str | None,
    typer.Option(
        "--embeddings",
        metavar="WHERE",
        help="What makes embeddings: local, a server's address with its /v1, or none; else TURNKEEP_EMBEDDINGS.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="The server's model; else TURNKEEP_EMBEDDINGS_MODEL."),
]

_SHARED: dict[str, tuple[Any, Any]] = {
    "dsn": (DsnOption, None),
    "schema": (SchemaOption, None),
    "json": (JsonOption, False),
    "quiet": (QuietOption, False),
    "no_color": (NoColorOption, False),
    "timeout": (TimeoutOption, None),
}


@dataclass(frozen=True)
class Options:
    """What the common options say."""

    dsn: str | None = None
    schema: str = DEFAULT_SCHEMA
    json: bool = False
    quiet: bool = False
    no_color: bool = False
    timeout: float = 30.0
    tenant: str | None = None
    redact: str | None = None

    def updated(
        self,
        *,
        dsn: str | None = None,
        schema: str | None = None,
        json: bool = False,
        quiet: bool = False,
        no_color: bool = False,
        timeout: float | None = None,
        tenant: str | None = None,
    ) -> Options:
        """These options and others given later, which win."""
        if timeout is not None:
            check_seconds("--timeout", timeout)
        return replace(
            self,
            dsn=self.dsn if dsn is None else dsn,
            schema=self.schema if schema is None else schema,
            json=self.json or json,
            quiet=self.quiet or quiet,
            no_color=self.no_color or no_color,
            timeout=self.timeout if timeout is None else timeout,
            tenant=self.tenant if tenant is None else tenant,
        )

    @property
    def output(self) -> Output:
        """Where data, notes and errors go."""
        return Output(json=self.json, quiet=self.quiet, no_color=self.no_color or bool(os.environ.get("NO_COLOR")))


def check_seconds(option: str, seconds: float) -> float:
    """Return the seconds that an option gives, if they can be."""
    if not 0 < seconds <= _LONGEST:
        raise InvalidInputError(f"{option}: {seconds:g}; more than 0 and at most {_LONGEST:g} seconds are allowed")
    return seconds


_OF_A_DATABASE = ("dsn", "schema", "timeout")


def command(function: Callable[..., Exit | None]) -> Callable[..., None]:
    """Make a command of a function: it also takes the common options, and its errors become exit codes.

    The function gets `Options` first, then what its own parameters declare, and returns an exit code or None.
    """
    return _command(function, _SHARED)


def conversation_command(function: Callable[..., Exit | None]) -> Callable[..., None]:
    """Make such a command of a function that names or lists conversations: it can see those of one tenant."""
    return _command(function, {"tenant": (TenantOption, None), **_SHARED})


def private_command(function: Callable[..., Exit | None]) -> Callable[..., None]:
    """Make such a command of a function that works on a private Postgres: it takes no option that names another."""
    return _command(function, {name: option for name, option in _SHARED.items() if name not in _OF_A_DATABASE})


def _command(function: Callable[..., Exit | None], options: dict[str, tuple[Any, Any]]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(function).parameters.values())[1:]
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

    def checked(base: Options) -> Options:
        named = [name for name in _OF_A_DATABASE if name not in options and getattr(base, name) != getattr(_NONE, name)]
        if named:
            raise InvalidInputError(f"--{named[0]}: this command works on a private Postgres; leave the option out")
        return base

    @functools.wraps(function)
    def run(context: typer.Context, **given: Any) -> None:
        late = {name: given.pop(name) for name in options}
        base = context.find_root().obj or _NONE
        with_json = replace(base, json=base.json or late["json"])
        raise typer.Exit(guarded(with_json.output, lambda: function(checked(base).updated(**late), **given)))

    run.__signature__ = inspect.Signature([context, *own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (context, *own, *shared)}
    return run


_NONE = Options()


def guarded(output: Output, action: Callable[[], Exit | None]) -> Exit:
    """Do something and give its exit code: errors of ours are told in words, never as a traceback."""
    try:
        code = action() or Exit.OK
        sys.stdout.flush()
    except TurnkeepError as error:
        code = exit_code(error)
        output.error(type(error).__name__, str(error), code)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        stop_writing()
        code = Exit.BROKEN_PIPE
    return code
