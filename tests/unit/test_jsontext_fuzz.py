"""No text and no value makes `jsontext` crash, or comes back as another one (G3). `make fuzz` runs more of it."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import awkward_json
from tests.fuzzing import examples
from tests.jsontext_laws import check_text, check_value
from tests.unit.json_values import any_text
from turnkeep.jsontext import RawJSON


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Masked(str):
    def __str__(self) -> str:
        return "***"


ODD = [
    *(b"\xff\xfe\0", {1}, Decimal("1.10"), object(), Colour.RED, Level.LOW, Masked("x"), complex(1), len, range(3)),
    *(float("nan"), float("inf"), -0.0, 2**63, True, None, (), {}, [], 1e22, 5e-324),
]
keys = any_text | st.sampled_from(awkward_json.KEYS) | st.sampled_from([1, None, Colour.RED, Masked("x"), (1,)])
long_integers = st.builds(pow, st.sampled_from([10, -10]), st.sampled_from([400, 4299, 4300, 5001]))
scalars = (
    any_text | st.floats() | st.integers() | long_integers | st.sampled_from(ODD) | awkward_json.valid().map(RawJSON)
)


def nested(value: object, levels: int) -> object:
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def containing_itself(children: list[Any]) -> object:
    children.append(children)
    return children


values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=8)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=3).map(containing_itself)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(any_text, inner, max_size=5).map(OrderedDict)
        | st.dictionaries(any_text, inner, max_size=5).map(lambda pairs: defaultdict(list, pairs))
        | st.builds(nested, inner, st.sampled_from([1, 2, 40, 498, 499, 500, 501, 1100]))
        | st.builds(lambda child, times: [child] * times, inner, st.sampled_from([9, 100, 1000]))
    ),
    max_leaves=10,
)


@examples(60)
@given(awkward_json.any_text())
def test_any_text_is_stored_as_it_is_or_refused(text: str) -> None:
    check_text(text)


@examples(60)
@given(values)
def test_any_value_comes_back_or_is_refused_by_its_path(value: object) -> None:
    check_value(value)


@pytest.mark.parametrize("text", [*awkward_json.NUMBERS, *awkward_json.BROKEN, *awkward_json.JUNK])
def test_each_odd_piece_alone_and_inside_is_stored_as_it_is_or_refused(text: str) -> None:
    for whole in (text, f"[{text}]", f'{{"a":{text},"b":0}}', f'"{text}"', f'{{"{text}":1,"{text}":2}}'):
        check_text(whole)
