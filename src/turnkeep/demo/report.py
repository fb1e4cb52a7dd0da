"""What a demo came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from turnkeep.demo.check import Findings
from turnkeep.demo.progress import Kill

_ENOUGH_KILLS = 8


@dataclass(frozen=True)
class Report:
    """The findings, the kills, and what they made others do again.

    `stuck` says why conversations did not come to their end.
    `replies_again` replies of the model were lost before they were stored, and generated again.
    """

    findings: Findings
    kills: Sequence[Kill]
    stuck: Sequence[str]
    replies_again: int
    seed: int
    sabotage: bool
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or doubled, under kills that have hit what they were to hit."""
        return self.findings.clean and sum(kill.in_flight > 0 for kill in self.kills) >= _ENOUGH_KILLS

    @property
    def worst_recovery(self) -> float | None:
        """The longest time from a kill until all that it had interrupted had gone on, in seconds."""
        return max((kill.recovery for kill in self.kills if kill.recovery is not None), default=None)

    def record(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "ok": self.ok,
            "sabotage": self.sabotage,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            **asdict(self.findings),
            "stuck": list(self.stuck),
            "replies_again": self.replies_again,
            "kills": [
                {
                    "target": kill.target.value,
                    "seen": kill.seen,
                    "in_flight": kill.in_flight,
                    "interrupted": sorted(kill.found_at),
                    "recovery_seconds": _rounded(kill.recovery),
                }
                for kill in self.kills
            ],
            "worst_recovery_seconds": _rounded(self.worst_recovery),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
