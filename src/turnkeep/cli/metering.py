"""What a worker measures of itself for Prometheus: how long its statements take, and what its saves are.

Nothing of it is there unless it is asked for: the store's own code does not know of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from turnkeep.store import AsyncStore

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SAVES = ("save", "save_turn", "take")


class Metering:
    """Measures the statements of a store from here on. Saves inside a tool's own transaction are not among them."""

    def __init__(self, store: AsyncStore, driven: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "turnkeep_worker_statement_seconds",
            "How long statements took, waiting for a connection and repetitions included.",
            ("statement",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._failures = Counter(
            "turnkeep_worker_statement_failures",
            "Statements that have failed for good, by the error.",
            ("statement", "error"),
            registry=self.registry,
        )
        self._saves = Counter(
            "turnkeep_worker_saves",
            "Saves by phase: input begins a turn, final ends one, tool_results has results.",
            ("phase",),
            registry=self.registry,
        )
        branches = Gauge("turnkeep_worker_branches", "Branches under way.", registry=self.registry)
        branches.set_function(driven)
        self._install(store)

    def _install(self, store: AsyncStore) -> None:
        database = store._database
        fetch = database.fetch

        async def measured(
            name: str, parameters: Mapping[str, Any] | None = None, **options: Any
        ) -> list[tuple[Any, ...]]:
            start = time.perf_counter()
            try:
                rows = await fetch(name, parameters, **options)
            except Exception as error:
                self._failures.labels(name, type(error).__name__).inc()
                raise
            self._seconds.labels(name).observe(time.perf_counter() - start)
            if name in _SAVES and rows and rows[0][0] == "saved":
                self._saves.labels(_phase(name, parameters or {})).inc()
            return rows

        database.fetch = measured  # type: ignore[method-assign]


def _phase(name: str, parameters: Mapping[str, Any]) -> str:
    return "input" if name == "take" else "final" if name == "save_turn" else str(parameters["phase"])
