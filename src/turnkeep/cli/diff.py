"""`turnkeep diff`: what two checkpoints have in common, and what not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.differences import Change, changes, heading, message_lines, whole_lines
from turnkeep.cli.jsonview import readable
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.output import Exact, Output, json_around, json_array
from turnkeep.cli.reference import CHECKPOINT, find
from turnkeep.cli.text import cut, one_line, printable, size

if TYPE_CHECKING:
    from turnkeep.store._compare import Body, Comparison, Difference, Side

_MOST_BYTES = 1_000_000  # of a message that people are shown
_MOST_LINES, _MOST_CHARACTERS = 60, 300
_STYLES = {"-": "red", "+": "green"}


@conversation_command
def diff(
    options: Options,
    a: Annotated[str, typer.Argument(metavar="A", help=CHECKPOINT, show_default=False, autocompletion=complete)],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="Another such place, of the same conversation or another.",
            show_default=False,
            autocompletion=complete,
        ),
    ],
) -> None:
    """Compare two checkpoints.

    Messages and states are compared by value, across branches and conversations. A place is named as ID@turn.sub_step,
    ID:branch, or ID:branch@turn.sub_step. Key order and white space make no
    difference; 1, 1.0, true and "1" do.
    """
    most = None if options.json else _MOST_BYTES
    compared = asyncio.run(_read(options, a, b, most))
    state = changes(compared.a.state_text, compared.b.state_text)
    if options.json:
        options.output.exact(_json(compared, state))
    else:
        _print(options.output, compared, state)


async def _read(options: Options, a: str, b: str, most: int | None) -> Comparison:
    from turnkeep.store._compare import compare, read_side

    async with opened(options) as store:
        sides = []
        for text in (a, b):
            found = await find(store, text)
            sides.append(await read_side(store, found.conversation, found.branch, found.at))
        return await (compare(store, *sides) if most is None else compare(store, *sides, most_bytes=most))


def _kind(difference: Difference) -> str:
    if difference.a is None:
        return "added"
    return "removed" if difference.b is None else "changed"


# -- for programs


def _json(compared: Comparison, state: Sequence[Change]) -> str:
    """The comparison as one JSON object around the exact texts that were stored (G3)."""
    counts = Counter(_kind(one) for one in compared.differences)
    differing = json_array(
        json_around(change=_kind(one), index_a=one.index_a, index_b=one.index_b, a=_exact(one.a), b=_exact(one.b))
        for one in compared.differences
    )
    numbers = {kind: counts[kind] for kind in ("added", "removed", "changed")}
    found = json_array(
        json_around(change=one.kind, path=one.path, a=Exact(one.before or "null"), b=Exact(one.after or "null"))
        for one in state
    )
    return json_around(
        a=_side(compared.a),
        b=_side(compared.b),
        messages=Exact(json_around(kept=compared.kept, **numbers, changes=differing)),
        state=Exact(json_around(changes=found)),
    )


def _exact(body: Body | None) -> Exact:
    return Exact("null" if body is None or body.text is None else body.text)


def _side(side: Side) -> dict[str, object]:
    names = ("conversation_id", "external_id", "branch", "branch_name", "turn_index", "sub_step")
    return {**{name: getattr(side, name) for name in names}, "messages": len(side.places)}


# -- for people


def _print(output: Output, compared: Comparison, state: Sequence[Change]) -> None:
    output.line((f"--- {_place(compared.a)}", "bold red"))
    output.line((f"+++ {_place(compared.b)}", "bold green"))
    counts = Counter(_kind(one) for one in compared.differences)
    numbers = [f"{compared.kept:,} kept"]
    numbers += [f"{counts[kind]:,} {kind}" for kind in ("changed", "removed", "added") if counts[kind]]
    output.line(("messages  ", "dim"), ", ".join(numbers))
    output.line(("state     ", "dim"), _in_words(state))
    shortened = False
    for one in compared.differences:
        shortened |= _print_difference(output, one)
    if state:
        output.line()
        output.line(("@@ state @@", "cyan"))
        shortened |= _print_lines(output, [line for change in state for line in _state_lines(change)])
    if shortened:
        output.note("Long content was cut: --json prints all of it.")


def _in_words(state: Sequence[Change]) -> str:
    if not state:
        return "the same"
    counts = Counter(change.kind for change in state)
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in ("changed", "removed", "added") if counts[kind])


def _place(side: Side) -> str:
    named = f" ({side.branch_name})" if side.branch_name not in (None, "main") else ""
    at = f"@{side.turn_index}.{side.sub_step}" if side.turn_index >= 0 else ", before its first turn"
    return one_line(f"{side.external_id}:{side.branch}{at}{named}")


def _print_difference(output: Output, one: Difference) -> bool:
    """Print one message that differs. Says whether something of it was left out."""
    indices = [
        f"-{one.index_a}" if one.index_a is not None else "",
        f"+{one.index_b}" if one.index_b is not None else "",
    ]
    place = " ".join(filter(None, indices))
    texts = [body.text for body in (one.a, one.b) if body is not None]
    output.line()
    if any(text is None for text in texts):
        sizes = " against ".join(size(body.size) for body in (one.a, one.b) if body is not None)
        output.line((f"@@ {place} @@", "cyan"), f"  {_kind(one)}; too large to show: {sizes}")
        return True
    known = [text for text in texts if text is not None]
    output.line((f"@@ {place} @@", "cyan"), (f"  {one_line(cut(heading(known[-1]), 200, 1)[0])}", "bold"))
    if len(known) == 2:
        return _print_lines(output, message_lines(*known))
    return _print_lines(output, whole_lines(known[0], "+" if one.a is None else "-"))


def _state_lines(change: Change) -> list[str]:
    lines = []
    for mark, text in (("-", change.before), ("+", change.after)):
        if text is not None:
            path = f"{change.path}: " if change.path else ""
            lines += [f"{mark}{line}" for line in f"{path}{readable(text)}".split("\n")]
    return lines


def _print_lines(output: Output, lines: Sequence[str]) -> bool:
    shortened = False
    for line in lines[:_MOST_LINES]:
        kept, left = cut(line, _MOST_CHARACTERS, 1)
        more = [(f" ... {left:,} more characters", "dim")] if left else []
        output.line((one_line(printable(kept)), _STYLES.get(line[:1], "dim")), *more)
        shortened |= left > 0
    if len(lines) > _MOST_LINES:
        output.line((f" ... {len(lines) - _MOST_LINES:,} more lines", "dim"))
        shortened = True
    return shortened
