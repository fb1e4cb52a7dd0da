"""Raw JSON text, reading, digests (G3): any text is kept, refused or unreadable, and never something else."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import random
import sys
from collections import OrderedDict
from hashlib import sha256
from http import HTTPMethod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.json_values import quick, strict, values
from turnkeep import _jsonreader, jsontext
from turnkeep.errors import UnreadableError, UnstorableError
from turnkeep.jsontext import MAX_DEPTH, RawJSON, decode, digest, digest_list, encode


class Masked(str):
    def __str__(self) -> str:
        return "***"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the slow halves: the fast ones always say that they don't know."""

    def give_up(*_: object) -> Any:
        raise ValueError

    for name in ("_is_plain", "_is_json", "_from_text", "_from_text_unique"):
        monkeypatch.setattr(jsontext, name, give_up)


# -- RawJSON ---------------------------------------------------------------------------------------------

GOOD = [
    '{"a":1,"a":2}',
    r'"\u0000"',
    r'"\ud83d \uDC00"',
    "7" * 400,
    "7" * 5000,
    "1e400",
    "-0.0",
    "-0",
    "1E+2",
    "1e-400",
    '"\x7f\u2028\ufffe"',
    r'"\/\b\f"',
    "[ ]",
    "null",
]
BAD_WORDS = r"""
NaN [1,NaN] Infinity -Infinity -NaN True nul truex nulll 'a' {a:1} {1:2} // [1]//x
01 -01 - +1 1. .5 1e 1e+ 1.e1 0x1 1_0 [1.] -.1 ٣ １
[ { ] } : , [1 [1,] [,] [1,,2] [1} [1]] {"a":1}} {] [} {"a"} {"a":} {"a":1,} {"a":1] {"a":1,,"b":2} {"a",1} [1:2] [1"2]
" "a "\ "\x" "\u12" "\u12g4" "\u00_1" "\ud83d\u" "\ud83d\uzzzz" ["\ud83d] "\" "a"b"
"""
BAD = [
    *BAD_WORDS.split(),
    *(
        '"\x01"',
        '"a\nb"',
        '"\t"',
        '"\0"',
        '"\ud800"',
        '{"\ud800":1}',
        "\0",
        "1\0",
        "\ufeff1",
        "\x0b1",
        "\xa01",
        "1\xa0",
    ),
    *("", " \n", "1 2", "[1 2]", '{"a" 1}', '"a" "b"', "nul l"),
]


@pytest.mark.parametrize("text", GOOD)
def test_raw_text_is_accepted(text: str) -> None:
    raw = RawJSON(f" \t\n\r{text}\r\n")
    assert raw.text == text
    assert encode([raw], "m") == f"[{text}]"
    assert len(digest(raw)) == 32


@pytest.mark.parametrize("text", GOOD)
def test_raw_text_is_accepted_by_the_slow_half(text: str, slow: None) -> None:
    assert RawJSON(text).text == text


@pytest.mark.parametrize("text", BAD)
def test_raw_text_is_refused(text: str) -> None:
    with pytest.raises(UnstorableError) as caught:
        RawJSON(text)
    assert caught.value.path.startswith("RawJSON")


@pytest.mark.parametrize("text", BAD)
def test_raw_text_is_refused_by_the_slow_half(text: str, slow: None) -> None:
    with pytest.raises(UnstorableError):
        RawJSON(text)


def test_raw_text_is_refused_with_the_place() -> None:
    with pytest.raises(UnstorableError) as caught:
        RawJSON('{"a":[1,{"age":NaN}]}')
    assert caught.value.path == 'RawJSON["a"][1]["age"]'
    assert caught.value.reason == "NaN and Infinity are not JSON (character 15)"
    with pytest.raises(UnstorableError) as caught:
        RawJSON('[{"a":1,2:3}]')
    assert caught.value.path == "RawJSON[0]"


@pytest.mark.parametrize("wrong", [b"{}", None, 1, {}])
def test_raw_takes_only_str(wrong: Any) -> None:
    with pytest.raises(UnstorableError, match="as str"):
        RawJSON(wrong)


def test_raw_is_a_frozen_value() -> None:
    raw = RawJSON("[1]")
    assert raw == RawJSON(" [1] ") != RawJSON("[ 1]")
    assert len({raw, RawJSON("[1]")}) == 1
    assert pickle.loads(pickle.dumps(raw)) == copy.deepcopy(raw) == raw
    assert type(RawJSON(Masked("[1]")).text) is str
    assert RawJSON(Masked("[1]")) == raw
    assert len(repr(RawJSON("[" + "1," * 1000 + "1]"))) < 100
    with pytest.raises(dataclasses.FrozenInstanceError):
        raw.text = "x"  # type: ignore[misc]


@quick
@given(
    values,
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.characters(exclude_categories=())), max_size=4),
)
def test_mutated_text_gives_only_typed_errors(value: object, edits: list[tuple[int, int, str]]) -> None:
    text = encode(value, "m")
    for kind, place, character in edits:
        place %= len(text) + 1
        text = text[:place] + (character if kind else "") + text[place + (kind != 1) :]
    try:
        raw = RawJSON(text)
    except UnstorableError:
        return
    assert len(digest(raw)) == 32
    assert json.loads(encode([raw], "m"))
    try:
        decode(raw.text, "m")
    except UnreadableError:
        return


# -- what is read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1e400", "range of a float"),
        ("-1e400", "range of a float"),
        ("1" * 400 + ".0", "range of a float"),
        ("7" * 5000, "5,000 digits"),
        ("[" * 200_000 + "]" * 200_000, "deeper than 500"),
        ("NaN", "not JSON"),
        ("{", "not JSON"),
    ],
)
def test_what_python_cannot_hold_is_unreadable(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason) as caught:
        decode('{"a":[0,' + text + "]}", "messages[3]")
    assert caught.value.path.startswith('messages[3]["a"][1]')


def test_small_numbers_and_duplicate_keys_are_read_as_the_standard_library_does() -> None:
    assert decode('[1e-400,-0.0,1E+2,-0,{"a":1,"b":2,"a":3}]', "m") == [0.0, -0.0, 100.0, 0, {"a": 3, "b": 2}]


def test_limit_on_digits_is_the_one_in_force() -> None:
    limit = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        assert decode(encode(10**5000, "m"), "m") == 10**5000
        before = digest(10**5000)
    finally:
        sys.set_int_max_str_digits(limit)
    assert digest(RawJSON("1" + "0" * 5000)) == before


# -- digests ---------------------------------------------------------------------------------------------


def shuffled(value: Any, seed: random.Random) -> Any:
    if isinstance(value, dict):
        pairs = list(value.items())
        seed.shuffle(pairs)
        return {key: shuffled(child, seed) for key, child in pairs}
    return [shuffled(child, seed) for child in value] if isinstance(value, list) else value


@quick
@given(values, st.randoms(use_true_random=False))
def test_digest_is_of_the_value(value: Any, seed: random.Random) -> None:
    expected = digest(value)
    text = json.dumps(shuffled(value, seed), ensure_ascii=seed.random() < 0.5, indent=seed.choice([None, 1]))
    raw = RawJSON(text.encode("utf-8", "backslashreplace").decode())
    assert digest(shuffled(value, seed)) == expected
    assert digest(raw) == expected
    assert digest([raw]) == digest([value])
    canonical = _jsonreader.Reader(raw.text, "m", _jsonreader.CANONICAL, UnstorableError).read()
    assert sha256(canonical.encode()).digest() == expected


@quick
@given(values, values)
def test_digests_are_equal_only_for_equal_values(one: Any, other: Any) -> None:
    def unordered(value: Any) -> object:
        if isinstance(value, dict):
            return "dict", {repr(strict(key)): unordered(child) for key, child in value.items()}
        return ("list", [unordered(child) for child in value]) if isinstance(value, list) else strict(value)

    assert (digest(one) == digest(other)) is (unordered(one) == unordered(other))


def test_digests_tell_apart_what_is_not_the_same() -> None:
    different: list[object] = [
        1,
        1.0,
        True,
        "1",
        None,
        "null",
        0,
        -0.0,
        0.0,
        "é",
        "e\u0301",
        [],
        {},
        [[]],
        [1],
        "",
        "\0",
    ]
    different += ["\ud800", "\\ud800", {"a": 1}, {"a": 1.0}, {"a": None}, {"b": 1}, 10**30, 1e30, 2**53, 2**53 + 1]
    different += [RawJSON(text) for text in ('{"a":1,"a":2}', '{"a":2,"a":1}', "1e400", "-1e400", "1e401", "7" * 5000)]
    different += [[1, 2], [2, 1], "🚀", "\ude80\ud83d", RawJSON('{"a":1,"a":1}')]
    assert len({digest(value) for value in different}) == len(different)


def test_digests_of_the_same_value_are_the_same() -> None:
    for group in (
        [100.0, 1e2, RawJSON("1E+2"), RawJSON("100.0"), RawJSON("1.000e2")],
        [0, RawJSON("-0")],
        [RawJSON('{"a":1,"a":0}'), RawJSON('{"a":1,"a":-0}')],
        ["\ud83d\ude80", "🚀", RawJSON(r'"\uD83D\ude80"')],
        [(1, 2), [1, 2], RawJSON("[1 , 2]")],
        [RawJSON("1e400"), RawJSON("1E+400")],
        [RawJSON('{"b":0,"a":1,"a":2}'), RawJSON('{"a":1, "b":0, "a":2}')],
        [{"x": HTTPMethod.GET}, OrderedDict(x="GET"), {"x": RawJSON('"\\u0047ET"')}],
    ):
        assert len({digest(value) for value in group}) == 1, group


@quick
@given(st.lists(values, max_size=4))
def test_digest_of_a_list_is_that_of_its_elements_however_it_is_made(listed: list[object]) -> None:
    odd = RawJSON('{"a":1e400,"a":2}')
    for elements in (listed, [*listed, odd], [odd, *listed]):
        assert digest_list(elements, "messages") == digest(elements)


def test_each_element_of_a_list_keeps_the_limits_by_itself() -> None:
    deepest = RawJSON("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert len(digest_list([deepest, "x" * 20, "y" * 20], "messages", max_bytes=1000)) == 32
    assert digest_list(["x" * 20, "y" * 20], "messages", max_bytes=22) == digest(["x" * 20, "y" * 20])
    with pytest.raises(UnstorableError) as caught:
        digest_list(["x", [deepest]], "messages")
    assert caught.value.path.startswith("messages[1]")
