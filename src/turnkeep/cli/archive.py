"""`turnkeep archive` and `unarchive`: conversations put away compressed, and put back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from turnkeep.cli.ages import age
from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.progress import bar
from turnkeep.cli.reference import CONVERSATION, find_only
from turnkeep.cli.text import count, size
from turnkeep.errors import ConflictError, InvalidInputError, LeaseError, NotFoundError

if TYPE_CHECKING:
    from turnkeep.model import Archiving
    from turnkeep.store import AsyncStore

_PAGE = 1000

_Several = Annotated[
    list[str] | None,
    typer.Argument(metavar="CONVERSATION...", help=CONVERSATION, show_default=False, autocompletion=complete),
]


@conversation_command
def archive(
    options: Options,
    references: _Several = None,
    ended_before: Annotated[
        str | None,
        typer.Option("--ended-before", metavar="AGE", help="Those that ended longer ago than this, such as 30d."),
    ] = None,
    idle_before: Annotated[
        str | None,
        typer.Option(
            "--idle-before", metavar="AGE", help="Those without an open turn that nothing has happened in for so long."
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Of those, only this agent's.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="Archive at most so many.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which would be archived, and change nothing.")
    ] = False,
) -> Exit:
    """Put conversations into the archive: compressed, readable, found by a search, and closed to writers.

    Each is one transaction: interrupted, the ones before stay archived, and the same command goes on.
    """
    filtered = ended_before is not None or idle_before is not None
    if bool(references) == filtered:
        raise InvalidInputError("name conversations, or say which by --ended-before or --idle-before")
    if references and agent is not None:
        raise InvalidInputError("--agent goes with --ended-before and --idle-before")
    wanted = {
        "ended_seconds": None if ended_before is None else age("--ended-before", ended_before).total_seconds(),
        "idle_seconds": None if idle_before is None else age("--idle-before", idle_before).total_seconds(),
        "agent_id": agent,
    }
    run = _Run(options, dry_run=dry_run)
    asyncio.run(run.archive(references or [], wanted, limit))
    run.tell("Archived", "already archived")
    return Exit.CONFLICT if run.refused else Exit.OK


@conversation_command
def unarchive(options: Options, references: _Several = None) -> Exit:
    """Put archived conversations back as they were."""
    if not references:
        raise InvalidInputError("name the conversations: `turnkeep ls --archived` lists them")
    run = _Run(options)
    asyncio.run(run.unarchive(references))
    run.tell("Unarchived", "not archived")
    return Exit.OK


class _Run:
    """What one call has done."""

    def __init__(self, options: Options, *, dry_run: bool = False) -> None:
        self._options = options
        self._dry_run = dry_run
        self._done: list[Archiving] = []
        self._would = 0
        self._repeated = 0
        self._skipped = 0
        self.refused: list[str] = []

    async def archive(self, references: list[str], wanted: dict[str, Any], limit: int | None) -> None:
        """Archive those that are named, or all that fit."""
        async with opened(self._options) as store:
            named = [await find_only(store, reference) for reference in references]
            age = {name: wanted[name] for name in ("ended_seconds", "idle_seconds")}
            with bar(self._options, "archiving", len(named) or None) as tell:
                async for conversation in _chosen(store, dict.fromkeys(named), wanted, limit):
                    if self._dry_run:
                        self._would += 1
                        self._would_be(conversation)
                        continue
                    try:
                        unread = await _index(store, conversation)
                        self._take(await store.archive(conversation, **age))
                        if unread:
                            self._options.output.note(
                                f"conversation {conversation}: {count(unread, 'turn')} could not be read for a search, "
                                "and none finds them until it is unarchived"
                            )
                    except (ConflictError, LeaseError) as error:
                        if len(named) == 1:
                            raise
                        self._refuse(str(error))
                    except NotFoundError:
                        if named:
                            raise  # else it was erased meanwhile
                    tell(len(self._done), sum(one.raw_bytes for one in self._done))

    async def unarchive(self, references: list[str]) -> None:
        """Unarchive those that are named."""
        async with opened(self._options) as store:
            named = dict.fromkeys([await find_only(store, reference) for reference in references])
            with bar(self._options, "unarchiving", len(named)) as tell:
                for conversation in named:
                    self._take(await store.unarchive(conversation))
                    tell(len(self._done), sum(one.raw_bytes for one in self._done))

    def tell(self, done: str, repeated: str) -> None:
        """Say what has been done."""
        output = self._options.output
        if self._options.json:
            return
        if self._dry_run:
            output.note(f"{count(self._would, 'conversation')} would be archived; nothing was changed.")
            return
        raw, packed = (sum(getattr(one, name) for one in self._done) for name in ("raw_bytes", "bytes"))
        where = "in the archive" if done == "Archived" else "of archive before"
        sizes = f": {size(raw)} of rows, {size(packed)} {where}" if self._done else ""
        if not self._options.quiet:
            output.text(f"{done} {count(len(self._done), 'conversation')}{sizes}.")
        if self._repeated:
            output.note(
                f"{count(self._repeated, 'conversation')} {'was' if self._repeated == 1 else 'were'} {repeated}."
            )
        if self._skipped:
            output.note(f"{count(self._skipped, 'conversation')} used meanwhile: left as they are.")

    def _would_be(self, conversation: UUID) -> None:
        if self._options.json:
            self._options.output.record({"conversation_id": conversation})
        else:
            self._options.output.text(str(conversation))

    def _take(self, one: Archiving) -> None:
        if one.skipped:
            self._skipped += 1
        elif one.repeated:
            self._repeated += 1
        else:
            self._done.append(one)
        if self._options.json:
            self._options.output.record(asdict(one))

    def _refuse(self, why: str) -> None:
        self.refused.append(why)
        self._options.output.note(why)


async def _index(store: AsyncStore, conversation: UUID) -> int:
    """See to it that a search finds what it can't read any more, and count what it won't."""
    from turnkeep.search import fill_documents

    while (report := await fill_documents(store, conversation=conversation, take_over=True)).filled:
        if not report.left:
            break
    return max(report.left, report.failed)


async def _chosen(
    store: AsyncStore, named: dict[UUID, None], wanted: dict[str, Any], limit: int | None
) -> AsyncIterator[UUID]:
    """Those that are named, else those that fit; at most `limit`."""
    left = limit if limit is not None else -1
    for one in named:
        if left == 0:
            return
        left -= 1
        yield one
    after: UUID | None = None
    while not named:
        page = await store.to_archive(**wanted, after=after, limit=_PAGE if left < 0 else min(left, _PAGE))
        for one in page:
            left -= 1
            yield one
        if not page or left == 0:
            return
        after = page[-1]
