"""What a list is made of gives that list again, and takes from the one before whatever was there."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from turnkeep import spans
from turnkeep.spans import MAX_PARTS, Parts, parts, same_values

TEXTS = st.lists(st.sampled_from([f'{{"n": {number}}}' for number in range(6)]), max_size=30)


def rebuilt(made: Parts, before: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The list that the parts stand for."""
    new = iter(texts[index] for index in made.new)
    found: list[str] = []
    for start, stop in made.pairs:
        assert (start == -1 and stop > 0) or 0 <= start < stop <= len(before)
        found += [next(new) for _ in range(stop)] if start == -1 else before[start:stop]
    assert next(new, None) is None
    return found


def texts(*numbers: int) -> list[str]:
    return [f'{{"n": {number}}}' for number in numbers]


@given(TEXTS, TEXTS)
def test_any_list_is_rebuilt_from_its_parts_and_nothing_that_was_there_is_new(
    before: list[str], after: list[str]
) -> None:
    made = parts(before, after)
    assert rebuilt(made, before, after) == after
    common = 0
    while common < min(len(before), len(after)) and before[common] == after[common]:
        common += 1
    middle = set(before[common:])
    assert not any(after[index] in middle for index in made.new if index >= common) or _is_in_the_tail(
        before, after, common, made
    )


def _is_in_the_tail(before: list[str], after: list[str], common: int, made: Parts) -> bool:
    """What both lists end with is taken as it stands there; a message before it may be one of those again."""
    end = 0
    while end < min(len(before), len(after)) - common and before[-1 - end] == after[-1 - end]:
        end += 1
    inner = set(before[common : len(before) - end])
    return not any(after[index] in inner for index in made.new)


def test_lists_as_people_change_them_are_told_by_few_parts() -> None:
    before = texts(*range(10))
    cases: list[tuple[list[str], tuple[tuple[int, int], ...]]] = [
        (before, ((0, 10),)),
        ([*before, *texts(10, 11)], ((0, 10), (-1, 2))),
        (before[:4], ((0, 4),)),
        ([], ()),
        ([*texts(99), *before[7:]], ((-1, 1), (7, 10))),  # compacted
        ([before[0], *texts(99), *before[7:]], ((0, 1), (-1, 1), (7, 10))),
        ([*before[:5], *texts(99), *before[6:]], ((0, 5), (-1, 1), (6, 10))),  # one edited
        ([*before[:5], *before[6:]], ((0, 5), (6, 10))),  # one removed
        ([*before[5:], *before[:5]], ((5, 10), (0, 5))),  # turned round
        ([*before, *before], ((0, 10), (-1, 10))),  # said again: stored again, at the end
    ]
    for after, pairs in cases:
        assert parts(before, after).pairs == pairs, after
    assert parts([], before).pairs == ((-1, 10),)
    assert parts(before, before).is_same(10)
    assert parts([], []).is_same(0)
    assert parts(before, [*before, *texts(10)]).is_longer(10)
    assert parts([], texts(1)).is_longer(0)
    assert not parts(before, before[:9]).is_longer(10)


def test_messages_are_the_same_by_their_values_and_not_by_their_spelling() -> None:
    stored = ['{"a": 1, "b": [true]}', '{"n":1.0}', '{"t":"\\u00e9"}']
    assert parts(stored, ['{"b":[true],"a":1}', '{ "n": 1.0 }', '{"t":"é"}']).is_same(3)
    for other in ('{"n": 1}', '{"n": "1.0"}', '{"n": true}', '{"n": null}', "{}"):
        assert parts(stored, [stored[0], other, stored[2]]).pairs == ((0, 1), (-1, 1), (2, 3)), other
    # Duplicate keys and numbers beyond Python's are values of their own.
    awkward = ['{"a": 1, "a": 1}', '{"n": 1e400}', '{"t": "\\ud800\\u0000"}']
    assert parts(awkward, [text.replace(" ", "") for text in awkward]).is_same(3)
    assert parts(awkward, ['{"a": 1}', '{"n": 1e401}', '{"t": "\\ud801\\u0000"}']).pairs == ((-1, 3),)


def test_a_list_in_too_many_parts_is_all_new() -> None:
    before = texts(*range(1000))
    after = before[::2]
    assert len(after) > MAX_PARTS
    made = parts(before, after)
    assert made.pairs == ((-1, 500),)
    assert [after[index] for index in made.new] == after
    fewer = before[: 2 * MAX_PARTS : 2]
    assert parts(before, fewer).new == ()


def test_many_equal_messages_take_no_longer_than_as_many_different_ones() -> None:
    before = ['{"content": "ok"}'] * 20_000
    assert parts(before, [*before[:10_000], '{"content": "no"}', *before]).new == (10_000, *range(10_001, 20_001))


def test_lists_of_values_are_compared_as_values() -> None:
    assert same_values(['{"a":1}'], ['{ "a": 1 }'])
    assert not same_values(['{"a":1}'], ['{"a":1.0}'])
    assert not same_values(["{}"], ["{}", "{}"])
    assert json.loads("{}") == {}


def test_positions_that_nothing_holds_and_in_turn() -> None:
    held = [0, 5, 7, 0, 2, 6, 1, 0, 3, 0, 9, 10]
    left = spans.without({0: 12, 1: 3, 2: 4}, held)
    assert left == [(0, 0, 2), (0, 7, 9), (0, 10, 12), (2, 0, 4)]
    assert list(spans.in_turn(left, 3)) == [[0, 0, 2, 0, 7, 8], [0, 8, 9, 0, 10, 12], [2, 0, 3], [2, 3, 4]]
    assert list(spans.in_turn([], 3)) == []
