"""What `turnkeep stats` makes of numbers: bounds that hold, rates between two looks."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.cli.metrics import check_installed
from turnkeep.errors import ConfigurationError
from turnkeep.store._save_times import SaveTimes
from turnkeep.store._stats import DocumentLag, Number, Stats, rates

NOW = datetime(2026, 11, 29, tzinfo=UTC)
NONE = Number(0, True)
LOOK = Stats(
    taken_at=NOW,
    server_started_at=NOW - timedelta(days=1),
    conversations=NONE,
    checkpoints=NONE,
    messages=NONE,
    archived=NONE,
    statuses=(),
    agents=(),
    live_leases=0,
    oldest_live_turn=None,
    expired_leases=0,
    oldest_expired_lease=None,
    oldest_open_turn=None,
    waiting_requests=0,
    oldest_request=None,
    pending_calls=0,
    uncertain_calls=0,
    documents=DocumentLag(0, 0, 0, None, False),
    connections=1,
    connection_limit=97,
    saves_drawn=100,
    requests_inserted=10,
    turns_begun=0,
    save_times=SaveTimes(100, 50.0, 0.1, 2.0, 0.2),
    tables=(),
)
LATER = replace(
    LOOK, taken_at=NOW + timedelta(seconds=2), saves_drawn=120, requests_inserted=16, turns_begun=4,
    save_times=SaveTimes(120, 70.0, 0.1, 2.0, 0.2),
)  # fmt: skip


@given(st.lists(st.floats(0.001, 1e6), min_size=1))
def test_the_bounds_on_percentiles_hold_whatever_the_times_are(times: list[float]) -> None:
    found = SaveTimes(len(times), sum(times), min(times), max(times), statistics.pstdev(times))
    for share, bound in ((0.5, found.p50_at_most_ms), (0.95, found.p95_at_most_ms)):
        assert sum(time <= bound * (1 + 1e-9) for time in times) >= share * len(times) * (1 - 1e-9)
        assert bound <= max(times)


def test_rates_are_what_happened_between_two_looks() -> None:
    found = rates(LOOK, LATER)
    assert found is not None
    assert (found.seconds, found.saves, found.requests, found.turns, found.save_mean_ms) == (2.0, 10.0, 3.0, 2.0, 1.0)
    hidden = rates(replace(LOOK, saves_drawn=None), LATER)
    assert hidden is not None
    assert hidden.saves is None


def test_nothing_is_counted_over_a_restart_or_what_set_the_numbers_back() -> None:
    assert rates(LOOK, replace(LATER, server_started_at=NOW)) is None
    assert rates(LOOK, replace(LATER, saves_drawn=3)) is None
    assert rates(LOOK, replace(LATER, requests_inserted=3)) is None
    assert rates(LOOK, LOOK) is None
    quiet = rates(LOOK, replace(LATER, save_times=LOOK.save_times))
    assert quiet is not None
    assert quiet.save_mean_ms is None


def test_what_serves_prometheus_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"turnkeep\[metrics\]"):
        check_installed()
