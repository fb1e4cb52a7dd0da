"""What a check of `turnkeep doctor` has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "problem"]


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do about it."""

    check: str
    level: Level
    message: str
    remedy: str | None = None


def some(names: Sequence[str]) -> str:
    """A few of many names."""
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
