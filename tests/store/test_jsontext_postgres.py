"""Postgres' own `json` type is the judge of what `RawJSON` and `encode` let through (G3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnkeep.errors import UnstorableError
from turnkeep.jsontext import MAX_DEPTH, RawJSON, encode

differential = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

WORDS = r"""
{ } [ ] , : " "a" "b":1 {"a": [1, [] {} \" \\ \/ \x \u \u0000 \ud83d \ude80 "\u0000" "\ud83d" é ٣ １
0 1 12 - + . e E 01 1. .5 1e 1e+ 1E+2 -0 -0.0 1e400 1e-400 true false null tru NaN -Infinity
"""
PIECES = [*WORDS.split(), *" \n\t\r\x0b\xa0\u2028\ufeff\x01\x1f\x7f\ufffe\U0010ffff"]
any_text = st.text(st.characters(exclude_categories=()), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=15,
)


@st.composite
def almost_json(draw: st.DrawFn) -> str:
    text = encode(draw(values), "m")
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(st.sampled_from(["", *PIECES])) + text[start + draw(st.integers(0, 1)) :]
    return text


@pytest.fixture
def through_postgres(dsn: str) -> Iterator[Callable[[str], str | None]]:
    """What the server gives back for a text cast to `json`; None where it refuses."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def through(text: str) -> str | None:
            try:
                row = connection.execute("SELECT %s::json::text", [text]).fetchone()
            except psycopg.errors.InvalidTextRepresentation:
                return None
            assert row is not None
            return str(row[0])

        yield through


@differential
@given(text=st.lists(st.sampled_from(PIECES), max_size=10).map("".join) | almost_json())
def test_raw_text_is_refused_exactly_where_postgres_refuses(
    through_postgres: Callable[[str], str | None], text: str
) -> None:
    try:
        raw = RawJSON(text)
    except UnstorableError:
        assert through_postgres(text) is None
    else:
        assert through_postgres(raw.text) == raw.text
        assert through_postgres(text) == text


@differential
@given(value=values)
def test_encoded_value_comes_back_from_postgres_to_the_byte(
    through_postgres: Callable[[str], str | None], value: object
) -> None:
    text = encode(value, "m")
    assert through_postgres(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "[" * MAX_DEPTH + "]" * MAX_DEPTH,
        '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH,
        "7" * 5000,
        "1e400",
        r'"\u0000\ud83d"',
        '{"a":1,"a":2}',
        '"\U0010ffff"',
    ],
    ids=lambda text: text[:8],
)
def test_extremes_that_are_allowed_come_back_to_the_byte(
    through_postgres: Callable[[str], str | None], text: str
) -> None:
    assert through_postgres(RawJSON(text).text) == text
