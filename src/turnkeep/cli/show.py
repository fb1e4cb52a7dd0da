"""`turnkeep show`: a conversation as it stands, or stood at a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.context import context_json, print_context
from turnkeep.cli.database import opened
from turnkeep.cli.details import detail_rows
from turnkeep.cli.jsonview import elements, readable
from turnkeep.cli.ls import branch_label, lease_label
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.output import Column, Exact, Output, json_around, json_array
from turnkeep.cli.reference import CHECKPOINT, find, find_only
from turnkeep.cli.text import ago, count, cut, one_line, printable
from turnkeep.cli.transcript import Message, Part, read_call, read_message
from turnkeep.cli.tree import print_tree
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import BranchSummary, Checkpoint, CheckpointSummary, Conversation
    from turnkeep.store._inbox import Waiting

Place = tuple[int, int]

_MOST_CHARACTERS, _MOST_LINES = 4000, 60
_MOST_WAITING = 5
_MEMBERS = (
    *("conversation_id", "external_id", "agent_id", "branch", "branch_name", "turn_index", "sub_step", "phase"),
    *("turn_open", "parent", "created_at", "write_id", "status", "lease_owner", "lease_until", "failure"),
)
_PAGE = 1000
_DETAILS = (
    "title",
    "tags",
    "metadata",
    "version",
    "tenant",
    "parent",
    "current_branch",
    "created_at",
    "ended_at",
    "archived_at",
)
_ROLE_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta", "system": "bold blue"}
_PART_STYLES = {"thought": "dim italic", "note": "dim"}
_COLUMNS = (
    Column("turn", right=True),
    Column("branch"),
    Column("phase"),
    Column("agent", flexible=True),
    Column("messages", right=True),
    Column("calls", right=True),
    Column("results", right=True),
    Column("saved", right=True),
)


@conversation_command
def show(
    options: Options,
    reference: Annotated[
        str,
        typer.Argument(metavar="CONVERSATION", help=CHECKPOINT, show_default=False, autocompletion=complete),
    ],
    raw: Annotated[bool, typer.Option("--raw", help="Print each message's exact JSON text, one a line.")] = False,
    in_context: Annotated[
        bool,
        typer.Option(
            "--context", help="Print what a model would get now, its instructions aside, and the size of each message."
        ),
    ] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Print the branches as a tree, the current one marked with *.")
    ] = False,
    history: Annotated[bool, typer.Option("--history", help="List the checkpoints, newest first.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many checkpoints of a history.")
    ] = 50,
) -> None:
    """Show where a conversation stands, and its messages.

    A place is named as ID, ID:branch, ID@turn.sub_step or ID:branch@turn.sub_step; a branch by its number or its name.
    """
    views = {"--raw": raw, "--context": in_context, "--tree": tree, "--history": history}
    chosen = [name for name, wanted in views.items() if wanted]
    if len(chosen) > 1:
        raise InvalidInputError(f"{' and '.join(chosen)} exclude each other")
    if raw and options.json:
        raise InvalidInputError("--raw prints messages: leave out --json")
    if tree:
        print_tree(options, asyncio.run(_read_tree(options, reference)), datetime.now(UTC))
        return
    if history:
        _print_history(options, asyncio.run(_read_history(options, reference, limit)), limit)
        return
    checkpoint, waiting, about = asyncio.run(_read(options, reference))
    if options.json:
        text = context_json(checkpoint, waiting) if in_context else checkpoint_json(checkpoint, waiting, about)
        options.output.exact(text)
    elif raw:
        _print_raw(options.output, checkpoint)
    elif in_context:
        _print_context(options.output, checkpoint, waiting)
    else:
        _print(options.output, checkpoint, waiting, about)


# -- reading


async def _read(options: Options, reference: str) -> tuple[Checkpoint, list[Waiting], Conversation]:
    """A checkpoint, what waits behind it where it is a head, and what is said of the conversation."""
    from turnkeep.store._inbox import waiting

    async with opened(options) as store:
        found = await find(store, reference)
        checkpoint = await store.restore(found.conversation, branch=found.branch, at=found.at)
        about = await store.describe(found.conversation)
        if found.at is not None:
            return checkpoint, [], about
        archived = about.archived_at is not None
        return checkpoint, await waiting(store, found.conversation, checkpoint.branch, archived=archived), about


async def _read_tree(options: Options, reference: str) -> list[BranchSummary]:
    async with opened(options) as store:
        return await store.branches(await find_only(store, reference))


async def _read_history(options: Options, reference: str, limit: int) -> list[CheckpointSummary]:
    """One more than is asked for, where there is one."""
    found: list[CheckpointSummary] = []
    async with opened(options) as store:
        named = await find(store, reference)
        if named.at is not None:
            # Which says if it is not there.
            await store.restore(named.conversation, branch=named.branch, at=named.at)
        before = None if named.at is None else (named.at[0], named.at[1] + 1)
        while len(found) <= limit:
            asked = min(limit + 1 - len(found), _PAGE)
            page = await store.history(named.conversation, branch=named.branch, limit=asked, before=before)
            found += page
            if len(page) < asked:
                break
            before = (page[-1].turn_index, page[-1].sub_step)
    return found


# -- for programs


def checkpoint_json(checkpoint: Checkpoint, waiting: Sequence[Waiting], about: Conversation) -> str:
    """A checkpoint as one JSON object around the exact texts that were stored (G3)."""
    return json_around(
        **{name: getattr(checkpoint, name) for name in _MEMBERS},
        conversation={name: getattr(about, name) for name in _DETAILS},
        pending=json_array(
            json_around(
                turn_index=call.turn_index,
                sub_step=call.sub_step,
                index=call.index,
                uncertain=call.uncertain,
                call=Exact(elements(call.tool_calls_text)[call.index]),
            )
            for call in checkpoint.pending
        ),
        waiting=json_array(
            json_around(key=one.key, received_at=one.received_at, message=Exact(one.text)) for one in waiting
        ),
        messages=json_array(checkpoint.message_texts),
        tool_calls=Exact(checkpoint.tool_calls_text or "[]"),
        tool_results=Exact(checkpoint.tool_results_text or "[]"),
        state=Exact(checkpoint.state_text or "null"),
    )


def _print_raw(output: Output, checkpoint: Checkpoint) -> None:
    broken = 0
    for text in checkpoint.message_texts:
        output.exact(text)
        broken += "\n" in text
    if broken:
        output.note(f"{count(broken, 'message')} stored with line breaks inside: not one a line.")


# -- for people


def _print(output: Output, checkpoint: Checkpoint, waiting: Sequence[Waiting], about: Conversation) -> None:
    now = datetime.now(UTC)
    _print_header(output, checkpoint, about, now)
    _print_waiting(output, waiting, now)
    shortened = _print_messages(output, checkpoint)
    if checkpoint.state_text not in (None, "null"):
        output.line()
        output.line(("state", "bold"))
        shortened |= _print_text(output, readable(checkpoint.state_text or ""), "")
    if shortened:
        output.note("Long content was cut: --raw prints all of the messages, --json all of the checkpoint.")


def _print_context(output: Output, checkpoint: Checkpoint, waiting: list[Waiting]) -> None:
    print_context(output, checkpoint, waiting)
    if _print_messages(output, checkpoint):
        output.note("Long content was cut: --raw prints all of the messages.")


def _print_messages(output: Output, checkpoint: Checkpoint) -> bool:
    shortened = False
    for index, text in enumerate(checkpoint.message_texts):
        shortened |= _print_message(output, index, read_message(text))
    return shortened


def _print_waiting(output: Output, waiting: Sequence[Waiting], now: datetime) -> None:
    """Print what has been posted and not taken up, one a line."""
    for number, request in enumerate(waiting[:_MOST_WAITING]):
        messages = elements(request.text) if request.text.lstrip().startswith("[") else [request.text]
        words = "; ".join(part.text for text in messages for part in read_message(text).parts)
        shown, left = cut(words, 200, 1)
        _row(
            output,
            "" if number else "waiting",
            (one_line(shown) + (" ..." if left else ""), "yellow"),
            (f"  posted {ago(request.received_at, now)} as {one_line(cut(request.key, 60, 1)[0])}", "dim"),
        )
    if len(waiting) > _MOST_WAITING:
        _row(output, "", (f"... and {len(waiting) - _MOST_WAITING} more", "dim"))


def _row(output: Output, name: str, *parts: str | tuple[str, str]) -> None:
    output.line((f"  {name:<9}", "dim"), *parts)


def _print_header(output: Output, checkpoint: Checkpoint, about: Conversation, now: datetime) -> None:
    row = partial(_row, output)
    output.line((one_line(checkpoint.external_id), "bold"))
    row("id", str(checkpoint.conversation_id))
    if checkpoint.agent_id:
        row("agent", one_line(checkpoint.agent_id))
    for name, value in detail_rows(about):
        row(name, cut(value, 300, 1)[0])
    branch = one_line(branch_label(checkpoint.branch, checkpoint.branch_name))
    if checkpoint.turn_index < 0:
        row("place", f"branch {branch}, before its first turn")
    else:
        row("place", f"turn {checkpoint.turn_index}.{checkpoint.sub_step}, branch {branch}")
        row("phase", f"{checkpoint.phase}, {'the turn is open' if checkpoint.turn_open else 'the turn has ended'}")
    row("status", checkpoint.status)
    if checkpoint.failure is not None:
        row("why", (one_line(cut(str(checkpoint.failure.get("message")), 500, 1)[0]), "red"))
    row("lease", one_line(lease_label(checkpoint.lease_owner, checkpoint.lease_until, now)))
    if checkpoint.created_at is not None:
        row("saved", f"{checkpoint.created_at:%Y-%m-%d %H:%M:%S %Z}, {ago(checkpoint.created_at, now)}")
    for number, call in enumerate(checkpoint.pending):
        part = read_call(elements(call.tool_calls_text)[call.index])
        words = one_line(cut(f"{part.title} {part.text}", 200, 1)[0])
        place = f"  of {call.turn_index}.{call.sub_step}"
        uncertain = [("  uncertain: it may have run", "bold yellow")] if call.uncertain else []
        row("pending" if number == 0 else "", (words, "yellow"), (place, "dim"), *uncertain)


def _print_message(output: Output, index: int, message: Message) -> bool:
    role = one_line(message.role)
    output.line()
    detail = [("  " + one_line(message.detail[:200]), "dim")] if message.detail else []
    output.line((f"[{index}] ", "dim"), (role, _ROLE_STYLES.get(role, "bold")), *detail)
    shortened = [_print_part(output, part) for part in message.parts]
    return any(shortened)


def _print_part(output: Output, part: Part) -> bool:
    if part.kind == "call":
        return _print_text(output, part.text, "", before=f"call {part.title} ", after=part.id)
    if part.kind == "result":
        return _print_text(
            output, part.text, "", before=" ".join(filter(None, ("result of", part.title, part.id))) + "\n"
        )
    title = part.title or ("thinking" if part.kind == "thought" else "")
    return _print_text(output, part.text, _PART_STYLES.get(part.kind, ""), before=f"{title}: " if title else "")


def _print_text(output: Output, text: str, style: str, *, before: str = "", after: str = "") -> bool:
    """Print a piece of content indented, and cut where it is very long. Says whether it was."""
    from rich.text import Text

    kept, left = cut(text, _MOST_CHARACTERS, _MOST_LINES)
    shown = Text()
    shown.append(printable(before[:200]), "yellow")
    shown.append(printable(kept), style)
    if left:
        shown.append(f" ... {left:,} more characters", "dim")
    if after:
        shown.append(f"  {one_line(after[:100])}", "dim")
    output.block(shown)
    return left > 0


def _print_history(options: Options, found: Sequence[CheckpointSummary], limit: int) -> None:
    output = options.output
    now = datetime.now(UTC)
    if options.json:
        for one in found[:limit]:
            output.record(asdict(one))
    elif found:
        output.table(
            _COLUMNS,
            [
                (
                    f"{one.turn_index}.{one.sub_step}",
                    str(one.branch),
                    one.phase,
                    one.agent_id or "-",
                    *(f"{number:,}" for number in (one.messages, one.tool_calls, one.tool_results)),
                    ago(one.created_at, now),
                )
                for one in found[:limit]
            ],
        )
    if len(found) > limit:
        output.note(f"There are more than {limit:,}: ask with a larger --limit.")
    if not found:
        output.note("There are no checkpoints yet.")
