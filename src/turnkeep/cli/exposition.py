"""Numbers as Prometheus reads them: names, labels, an HTTP server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

import turnkeep
from turnkeep.errors import ConfigurationError, TurnkeepError

if TYPE_CHECKING:
    from turnkeep.store._stats import Stats, TableSize

_LONGEST_LABEL = 100
_STATUSES = ("idle", "open", "ready", "running", "waiting", "ended", "failed")


class Exposition(Collector):
    """Looks at the database when it is scraped, and no more often than every `max_age` seconds.

    `look` gives the numbers or raises an error of ours, which is told by `tell`, once for each time it begins.
    """

    def __init__(
        self, look: Callable[[], Stats], schema: str, max_age: float, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._look = look
        self._schema = schema
        self._max_age = max_age
        self._tell = tell
        self._lock = Lock()
        self._taken: float | None = None
        self._found: Stats | None = None
        self._seconds = 0.0
        self._well = True

    def describe(self) -> Iterator[Metric]:
        """Name nothing beforehand, so that no scrape is made to find the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Give all numbers, as they were up to `max_age` seconds ago."""
        with self._lock:
            if self._taken is None or time.monotonic() - self._taken >= self._max_age:
                self._refresh()
            found, seconds = self._found, self._seconds
        yield GaugeMetricFamily("turnkeep_up", "Whether the database has answered.", value=found is not None)
        yield GaugeMetricFamily("turnkeep_look_seconds", "How long the last look at the database took.", value=seconds)
        yield InfoMetricFamily(
            "turnkeep",
            "The release of the exporter, and the schema it looks at.",
            value={"version": turnkeep.__version__, "schema": self._schema},
        )
        if found is not None:
            yield from families(found)

    def _refresh(self) -> None:
        start = time.monotonic()
        try:
            self._found = self._look()
        except TurnkeepError as error:
            self._found = None
            if self._well:
                self._tell(f"no answer: {str(error).splitlines()[0]}")
        if self._found is not None and not self._well:
            self._tell("the database answers again")
        self._well = self._found is not None
        self._taken = time.monotonic()
        self._seconds = self._taken - start


def families(found: Stats) -> Iterator[Metric]:
    """All that is told of a look."""
    gauges = {
        "turnkeep_conversations": ("Conversations.", found.conversations.value),
        "turnkeep_checkpoints": ("Checkpoints.", found.checkpoints.value),
        "turnkeep_messages": ("Messages.", found.messages.value),
        "turnkeep_archived_conversations": ("Conversations that are archived.", found.archived.value),
        "turnkeep_live_turn_oldest_seconds": (
            "Age of the oldest turn under a live lease; 0 if there is none.",
            _age(found, found.oldest_live_turn),
        ),
        "turnkeep_expired_lease_oldest_seconds": (
            "How long ago the first lease expired that nobody has taken over; 0 if there is none.",
            _age(found, found.oldest_expired_lease),
        ),
        "turnkeep_open_turn_oldest_seconds": (
            "Age of the oldest open turn without a lease; 0 if there is none.",
            _age(found, found.oldest_open_turn),
        ),
        "turnkeep_requests_waiting": ("Requests that wait for a turn.", found.waiting_requests),
        "turnkeep_request_oldest_seconds": (
            "How long the oldest request has waited for a turn; 0 if none waits.",
            _age(found, found.oldest_request),
        ),
        "turnkeep_calls_pending": ("Tool calls without a result.", found.pending_calls),
        "turnkeep_calls_uncertain": ("Those of which nobody knows whether they have run.", found.uncertain_calls),
        "turnkeep_documents_dead": ("Documents given up for search.", found.documents.dead_letters),
        "turnkeep_document_lag_seconds": (
            "How long the oldest document has been due for search; 0 if none is.",
            _age(found, found.documents.oldest_due),
        ),
        "turnkeep_connections": ("Connections of the server in use.", found.connections),
        "turnkeep_connections_limit": ("Connections that ordinary roles can have.", found.connection_limit),
        "turnkeep_database_start_time_seconds": (
            "When the server was started, in Unix time.",
            found.server_started_at.timestamp(),
        ),
    }
    for name, (words, value) in gauges.items():
        yield GaugeMetricFamily(name, words, value=value)
    statuses = dict.fromkeys(_STATUSES, 0) | {status: number.value for status, number in found.statuses}
    documents = found.documents
    for name, label, words, values in (
        ("branches", "status", "Branches by status.", statuses),
        ("agent_conversations", "agent_id", "Conversations of the agents that have the most.", _agents(found)),
        ("leases", "state", "Leases, live and expired.", {"live": found.live_leases, "expired": found.expired_leases}),
        (
            "documents_due",
            "stage",
            "Documents that search does not know yet, up to 100,000 of them.",
            {"fill": documents.to_fill, "embed": documents.to_embed},
        ),
    ):
        yield _labelled(f"turnkeep_{name}", words, label, values)
    for what, words in (
        ("table_bytes", "Bytes of a table, with its long values."),
        ("table_index_bytes", "Bytes of a table's indexes."),
        ("table_live_rows", "Live rows, as the server's statistics have them."),
        ("table_dead_rows", "Dead rows, as the server's statistics have them."),
    ):
        yield _labelled(f"turnkeep_{what}", words, "table", {one.name: _of(one, what) for one in found.tables})
    if found.saves_drawn is not None:
        yield CounterMetricFamily("turnkeep_saves", "Saves, by the numbers they have drawn.", value=found.saves_drawn)
    yield CounterMetricFamily(
        "turnkeep_requests", "Requests accepted, and turns begun under a key.", value=found.requests_inserted
    )
    if found.save_times is not None:
        yield SummaryMetricFamily(
            "turnkeep_save_server_seconds",
            "Time of saves in the server, by pg_stat_statements.",
            count_value=found.save_times.calls,
            sum_value=found.save_times.total_ms / 1000,
        )


@contextmanager
def serve(registry: CollectorRegistry, host: str, port: int) -> Iterator[str]:
    """Serve what is collected over HTTP, in a thread, and give the address."""
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"can't serve on {host}:{port}: {error.strerror or error}. --port names another"
        ) from error
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _labelled(name: str, words: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family


def _of(table: TableSize, what: str) -> int:
    """A number of a table by its metric's name."""
    return int(getattr(table, what if what == "table_bytes" else what.removeprefix("table_")))


def _agents(found: Stats) -> dict[str, int]:
    """Agents by name. Long names that begin alike are taken together."""
    numbers: dict[str, int] = {}
    for name, number in found.agents:
        label = (name or "")[:_LONGEST_LABEL]
        numbers[label] = numbers.get(label, 0) + number.value
    return numbers


def _age(found: Stats, then: datetime | None) -> float:
    return 0.0 if then is None else max((found.taken_at - then).total_seconds(), 0.0)
