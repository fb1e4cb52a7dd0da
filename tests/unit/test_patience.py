"""How long a request waits for a model server that fails, told a time that no clock shows."""

from __future__ import annotations

from turnkeep.runner.deltas import ModelUnavailableError
from turnkeep.runner.effects import ModelRefused
from turnkeep.runner.patience import Patience

Error = ModelUnavailableError


def failure(
    reason: str = "refused", *, status: int | None = None, begun: bool = False, after: float | None = None
) -> Error:
    error = ModelUnavailableError(reason, after, status)
    error.begun = begun
    return error


def waits(patience: Patience, error: ModelUnavailableError, seconds: float) -> list[float | ModelRefused | None]:
    """What comes of the same error again and again over that time."""
    now = 0.0
    outcomes: list[float | ModelRefused | None] = []
    while now <= seconds:
        outcome = patience.after(error, now)
        outcomes.append(outcome)
        if not isinstance(outcome, float):
            break
        now += outcome
    return outcomes


def test_a_server_that_is_away_is_asked_less_and_less_often_and_after_a_minute_handed_back() -> None:
    outcomes = waits(Patience(), failure(), 1000)
    assert outcomes[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert outcomes[-1] is None
    pauses = [pause for pause in outcomes if isinstance(pause, float)]
    assert 60 < sum(pauses) < 70


def test_a_server_that_asks_for_time_gets_it() -> None:
    assert Patience().after(failure(status=429, after=7.0), 0.0) == 7.0


def test_the_same_500_for_a_minute_is_an_answer() -> None:
    refused = waits(Patience(), failure("no images", status=500), 1000)[-1]
    assert isinstance(refused, ModelRefused)
    assert (refused.message, refused.status) == ("no images", 500)


def test_a_500_among_other_failures_is_none() -> None:
    for other in (failure(), failure("overloaded", status=503), failure("another", status=500)):
        patience = Patience()
        assert patience.after(failure("no images", status=500), 0.0) is not None
        assert patience.after(other, 30.0) is not None
        assert patience.after(failure("no images", status=500), 61.0) is None
    assert waits(Patience(), failure("overloaded", status=503), 1000)[-1] is None


def test_a_reply_that_began_begins_the_minute_anew() -> None:
    patience = Patience()
    for now in (0.0, 59.0, 118.0, 177.0):
        assert isinstance(patience.after(failure(), now), float)
        assert patience.after(failure(begun=True), now + 1) == 0.1


def test_a_reply_that_breaks_off_ten_times_is_a_failure() -> None:
    patience = Patience()
    outcomes = [patience.after(failure("reset", begun=True), float(number)) for number in range(10)]
    assert outcomes[:-1] == [0.1] * 9
    assert isinstance(outcomes[-1], ModelRefused)
    assert "10 times" in outcomes[-1].message
