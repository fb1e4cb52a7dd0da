"""`turnkeep show --tree`: the branches of a conversation, and where each was forked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from turnkeep.cli.ls import STATUS_STYLES, lease_label
from turnkeep.cli.options import Options
from turnkeep.cli.output import Column
from turnkeep.cli.text import ago, one_line

if TYPE_CHECKING:
    from turnkeep.model import BranchSummary

_COLUMNS = (
    Column("branch", flexible=True),
    Column("status"),
    Column("head", right=True),
    Column("forked at", right=True),
    Column("last turn", right=True),
    Column("lease", flexible=True),
)


def print_tree(options: Options, branches: Sequence[BranchSummary], now: datetime) -> None:
    """Print the branches, each below the one it was forked from; the current one is marked with *."""
    if options.json:
        for branch in branches:
            options.output.record(asdict(branch))
        return
    rows = []
    for guide, branch in _in_order(branches, None, ""):
        name = f" {one_line(branch.name)}" if branch.name else ""
        label = f"{guide}{branch.branch}{name}{' *' if branch.current else ''}"
        rows.append(
            (
                (label, "bold" if branch.current else ""),
                (branch.status, STATUS_STYLES.get(branch.status, "yellow")),
                "-" if branch.turn_index < 0 else f"{branch.turn_index}.{branch.sub_step}",
                "-" if branch.parent is None else f"{branch.parent[1]}.{branch.parent[2]}",
                "-" if branch.turn_index < 0 else ago(branch.turn_started_at, now),
                one_line(lease_label(branch.lease_owner, branch.lease_until, now)),
            )
        )
    options.output.table(_COLUMNS, rows)


def _in_order(
    branches: Sequence[BranchSummary], parent: int | None, indent: str
) -> Iterator[tuple[str, BranchSummary]]:
    """Branches with the lines that lead to them. Those whose parent was deleted stand at the top."""
    there = {branch.branch for branch in branches}
    children = [branch for branch in branches if _parent(branch, there) == parent]
    for branch in children:
        last = branch is children[-1]
        top = parent is None
        yield ("" if top else f"{indent}{'└─ ' if last else '├─ '}"), branch
        yield from _in_order(branches, branch.branch, "" if top else f"{indent}{'   ' if last else '│  '}")


def _parent(branch: BranchSummary, there: set[int]) -> int | None:
    return branch.parent[0] if branch.parent is not None and branch.parent[0] in there else None
