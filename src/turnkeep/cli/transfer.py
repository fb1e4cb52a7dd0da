"""`turnkeep export` and `import`: conversations to a file, and from one."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.details import pairs
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.progress import bar
from turnkeep.cli.reference import CONVERSATION, find_only
from turnkeep.cli.text import count, size
from turnkeep.errors import CorruptionError, InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import Transferred

_MAGIC = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ": lzma.open, b"BZh": bz2.open}
_ENDINGS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_LONGEST_MAGIC = 6
# Who names one of these wants it compressed, and not a file that its program can't read.
_NOT_WRITTEN = frozenset(
    (".zst", ".zstd", ".zip", ".7z", ".br", ".lz", ".lz4", ".lzma", ".lzo", ".z", ".tgz", ".tar", ".rar")
)


class Source(StrEnum):
    """What can be imported."""

    TURNKEEP = "turnkeep"
    OPENAI_CHAT = "openai-chat"
    SHAREGPT = "sharegpt"
    LANGGRAPH = "langgraph"
    OPENAI_AGENTS = "openai-agents"


_TABLES = {Source.LANGGRAPH: "langgraph", Source.OPENAI_AGENTS: "agents_sdk"}


@conversation_command
def export(
    options: Options,
    references: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONVERSATION...", help=CONVERSATION, show_default=False, autocompletion=complete),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All conversations.")] = False,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to: compressed where it ends in .gz, .xz or .bz2; - is stdout.",
        ),
    ] = "-",
    children: Annotated[bool, typer.Option("--children", help="With their child conversations.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="All of this agent's.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="All with this tag; may be repeated.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="All whose metadata have this, as JSON or else text."),
    ] = None,
    documents: Annotated[
        bool, typer.Option("--documents/--no-documents", help="With the texts and embeddings of a search.")
    ] = True,
) -> None:
    """Write conversations as lines of JSON, exact and with their digests.

    Each is written as it is at one moment, also while somebody writes to it. `turnkeep import` reads them.
    """
    filtered = everything or bool(agent or tag or where)
    if bool(references) == filtered:
        raise InvalidInputError("name conversations, or say which by --all, --agent, --tag or --where")
    if children and filtered:
        raise InvalidInputError("--children goes with conversations that are named")
    if output == "-" and options.output.terminal:
        raise InvalidInputError("an export is for a file: say --output FILE, or send it on with |")
    if Path(output).suffix.lower() in _NOT_WRITTEN:
        raise InvalidInputError(f"--output: {output}: no {Path(output).suffix} is written: name it .gz, .xz or .bz2")
    filters = {"agent_id": agent, "tags": tag or None, "metadata": pairs("--where", where) if where else None}
    damaged: CorruptionError | None = None
    with _written(output) as file:
        try:
            done = asyncio.run(_export(options, references, filters, file, children, documents))
        except CorruptionError as error:
            if not error.left_out:
                raise
            damaged = error  # the others are written, and that file is whole
    if damaged is not None:
        raise damaged
    if options.json and output != "-":
        options.output.record(asdict(done))
    else:
        options.output.note(f"Exported {_in_words(done)}.")


async def _export(
    options: Options,
    references: list[str] | None,
    filters: dict[str, Any],
    file: BinaryIO,
    children: bool,
    documents: bool,
) -> Transferred:
    async with opened(options) as store:
        named = None if not references else [await find_only(store, reference) for reference in references]
        total = await store.count_matching(**filters) if named is None else None if children else len(set(named))
        with bar(options, "exporting", total) as tell:
            return await store.export(
                file, named, children=children, documents=documents, progress=tell, **(filters if named is None else {})
            )


@conversation_command
def import_(
    options: Options,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What `turnkeep export` has written, compressed or not; - is stdin. For tables, their database's DSN.",
        ),
    ],
    source: Annotated[
        Source, typer.Option("--from", help="What it is: files of chats, or a database with another program's tables.")
    ] = Source.TURNKEEP,
    source_schema: Annotated[
        str, typer.Option("--source-schema", metavar="NAME", help="The schema of the other program's tables.")
    ] = "public",
    as_copy: Annotated[
        bool, typer.Option("--as-copy", help="Give each a new id, with nothing of the old one's work.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file and say what would be imported; change nothing.")
    ] = False,
) -> None:
    """Read conversations that were exported, each whole or not at all.

    The same file again changes nothing: what is there with the same content is left alone. After an
    interruption, run it again.
    """
    name = "standard input" if file == "-" else "the tables" if source in _TABLES else file
    with _source(options, file, source, source_schema) as (stream, position, total):
        done = asyncio.run(_import(options, stream, name, as_copy, dry_run, position, total))
    if options.json:
        options.output.record(asdict(done))
    elif not options.quiet:
        said = "Would import" if dry_run else "Imported"
        there = f"; {count(done.there, 'conversation')} there already" if done.there else ""
        options.output.text(f"{said} {_in_words(done)}{there}.")
    if done.missing_parents and not options.json:
        options.output.note(f"{count(done.missing_parents, 'parent')} of these not there: import them too.")


async def _import(
    options: Options,
    stream: BinaryIO,
    name: str,
    as_copy: bool,
    dry_run: bool,
    position: Any,
    total: int | None,
) -> Transferred:
    async with opened(options) as store:
        with bar(options, "importing", total) as tell:

            def progress(_: int, number: int) -> None:
                tell(position(), number)

            return await store.import_(stream, name=name, as_copy=as_copy, dry_run=dry_run, progress=progress)


@contextmanager
def _source(
    options: Options, file: str, source: Source, schema: str
) -> Iterator[tuple[BinaryIO, Callable[[], int], int | None]]:
    """What is read, as an export; how far it has been read, and how long it is."""
    from turnkeep.imports.stream import Stream

    if source is Source.TURNKEEP:
        with _read(file) as found:
            yield found
        return
    if source in _TABLES:
        from turnkeep.imports.agents_sdk import openai_agents
        from turnkeep.imports.langgraph import langgraph
        from turnkeep.store import ForeignTables

        with ForeignTables(file, _TABLES[source], schema) as tables:
            made = langgraph(tables, options.output.note) if source is Source.LANGGRAPH else openai_agents(tables)
            yield cast("BinaryIO", Stream(made)), lambda: 0, None
        return
    from turnkeep.imports.chat import openai_chat, sharegpt

    with _read(file) as (stream, position, total):
        read = openai_chat if source is Source.OPENAI_CHAT else sharegpt
        yield cast("BinaryIO", Stream(read(stream, file))), position, total


def _in_words(done: Transferred) -> str:
    return (
        f"{count(done.conversations, 'conversation')} with {count(done.messages, 'message')} and "
        f"{count(done.checkpoints, 'checkpoint')}, {size(done.bytes)}"
    )


@contextmanager
def _written(output: str) -> Iterator[BinaryIO]:
    """A file to write to. Under its name there is all of it, or what was there before."""
    if output == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    given = Path(output)
    opener = cast("Any", _ENDINGS.get(given.suffix.lower(), open))
    if given.exists() and not given.is_file():  # a device or a pipe is written to, and never replaced
        with _to_device(output, opener) as file:
            yield file
        return
    path = given.resolve()  # a link stays one
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with opener(part, "wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise InvalidInputError(f"--output: {output} can't be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def _to_device(output: str, opener: Any) -> Iterator[BinaryIO]:
    try:
        with opener(output, "wb") as file:
            yield file
    except OSError as error:
        raise InvalidInputError(f"--output: {output} can't be written: {error.strerror or error}") from error


@contextmanager
def _read(name: str) -> Iterator[tuple[BinaryIO, Any, int | None]]:
    """A file to read, whatever it is compressed with; how far it has been read, and how long it is."""
    try:
        raw: Any = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInputError(f"{name} can't be read: {error.strerror or error}") from error
    with raw if name != "-" else nullcontext():
        total = os.fstat(raw.fileno()).st_size if name != "-" else None
        beginning = raw.peek(_LONGEST_MAGIC)[:_LONGEST_MAGIC]
        opener: Any = next((one for magic, one in _MAGIC.items() if beginning.startswith(magic)), None)
        position = raw.tell if total else (lambda: 0)
        yield (raw if opener is None else opener(raw, "rb")), position, total or None
