"""How two values, and two messages, are told apart."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.cli.differences import changes, message_lines, unified, whole_lines
from turnkeep.cli.reference import readings
from turnkeep.store._alignment import align


def found(before: str | None, after: str | None) -> dict[str, tuple[str | None, str | None]]:
    return {change.path: (change.before, change.after) for change in changes(before, after)}


def test_types_differ_and_spelling_and_order_do_not() -> None:
    before = '{"i": 1, "f": 1.0, "t": true, "s": "1", "e": 1e2, "z": 0.0, "n": null, "same": [1, {"a": 2}]}'
    after = '{"same":[1,{"a":2}], "n": 0, "z": -0.0, "e": 100.0, "s": 1, "t": 1, "f": 1, "i": 1}'
    assert found(before, after) == {
        "f": ("1.0", "1"),
        "t": ("true", "1"),
        "s": ('"1"', "1"),
        "z": ("0.0", "-0.0"),
        "n": ("null", "0"),
    }


def test_a_change_is_found_where_it_is() -> None:
    before = '{"a": {"b": [1, 2, 3, 4]}, "gone": [], "odd key": 1}'
    after = '{"a": {"b": [1, 9, 2, 3, 4]}, "new": {}, "odd key": 2}'
    assert found(before, after) == {
        "a.b[1]": (None, "9"),
        "gone": ("[]", None),
        '["odd key"]': ("1", "2"),
        "new": (None, "{}"),
    }
    assert found("[1, 2]", "[2]") == {"[0]": ("1", None)}
    assert found('[1, {"x": 1}]', '[1, {"x": 2}]') == {"[1].x": ("1", "2")}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"n": 1e400}', '{"n": 1e401}'),
        ('{"n": ' + "9" * 5000 + "}", '{"n": ' + "8" * 5000 + "}"),
        (None, '{"n": 1}'),
        ('{"n": 1}', None),
        ('{"n": 1, "n": 2}', '{"n": 1, "n": 3}'),
        ("[" * 400 + "1" + "]" * 400, "[" * 400 + "2" + "]" * 400),
        ('{"n": {}}', '{"n": []}'),
    ],
)
def test_whatever_can_be_stored_can_be_told_apart(before: str | None, after: str | None) -> None:
    assert len(changes(before, after)) == 1
    assert changes(before, before) == changes(after, after) == []


def test_messages_differ_by_line() -> None:
    before = {"role": "user", "content": "one\ntwo\nthree"}
    after = {"role": "user", "content": "one\n2\nthree"}
    assert message_lines(json.dumps(before), json.dumps(after)) == [" one", "-two", "+2", " three"]
    said = {**after, "role": "system"}
    assert message_lines(json.dumps(after), json.dumps(said))[:2] == ["-user", "+system"]


def test_what_reads_the_same_differs_by_its_json() -> None:
    before = {"role": "user", "content": "hi", "metadata": {"timestamp": "1"}}
    after = {"role": "user", "content": "hi", "metadata": {"timestamp": "2"}}
    lines = message_lines(json.dumps(before), json.dumps(after))
    assert '-"metadata": {"timestamp": "1"}' in lines
    assert '+"metadata": {"timestamp": "2"}' in lines


def test_a_message_alone_is_all_its_lines() -> None:
    call = {"id": "c1", "name": "look", "arguments": {"n": 1}}
    message = {"role": "assistant", "content": "a\nb", "metadata": {"tool_calls": [call]}}
    assert whole_lines(json.dumps(message), "+") == ["+a", "+b", '+call look {"n": 1}  c1']


def test_a_long_text_is_not_compared_without_end() -> None:
    lines = unified([str(i) for i in range(50_000)], [str(-i) for i in range(50_000)])
    assert lines[-1] == " ... and more"


def test_a_reference_is_read_with_the_longest_id_first() -> None:
    assert list(readings("ticket")) == [("ticket", None, None)]
    assert list(readings("a:b:2@1.0")) == [
        ("a:b:2@1.0", None, None),
        ("a:b:2", None, (1, 0)),
        ("a:b", 2, (1, 0)),
        ("a", "b:2", (1, 0)),
    ]
    assert list(readings("@last:retry")) == [("@last:retry", None, None), ("@last", "retry", None)]
    assert list(readings("x:")) == [("x:", None, None)]
    assert list(readings(":1")) == [(":1", None, None)]


# -- lists of messages


def kept(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    blocks = align(a, b)
    assert [i for block in blocks for i in block.a] == list(range(len(a)))
    assert [j for block in blocks for j in block.b] == list(range(len(b)))
    for block in blocks:
        if block.same:
            assert [a[i] for i in block.a] == [b[j] for j in block.b]
    return sum(len(block.a) for block in blocks if block.same)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_lists_are_laid_beside_each_other_whole(a: list[str], b: list[str]) -> None:
    assert (kept(a, b) == len(a) == len(b)) is (a == b)


def test_what_was_put_in_leaves_the_rest_as_it_is() -> None:
    assert kept("abcdef", "aXbcdYef") == 6
    assert kept(["1", "ok", "x", "ok", "2"], ["3", "ok", "ok", "x", "ok", "4"]) == 3
    assert kept(["hi"] * 5000, ["ho", *["hi"] * 5000, "he"]) == 5000
