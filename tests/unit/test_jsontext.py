"""Exact JSON text (G3): what is accepted comes back as it was, what is refused is refused by its path."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import random
import sys
import uuid
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.unit.json_values import quick, strict, values
from turnkeep import _jsonreader, jsontext
from turnkeep.errors import UnreadableError, UnstorableError
from turnkeep.jsontext import MAX_DEPTH, RawJSON, decode, digest, encode

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.json"))


def nested(depth: int, core: object = None) -> list[Any]:
    value: list[Any] = [] if core is None else [core]
    for _ in range(depth - 1):
        value = [value]
    return value


def refused(value: object, **options: Any) -> UnstorableError:
    with pytest.raises(UnstorableError) as caught:
        encode(value, "state", **options)
    return caught.value


# -- the corpus ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_corpus_text_is_kept_and_its_value_comes_back(file: Path) -> None:
    text = file.read_bytes().decode()
    raw = RawJSON(text)
    assert raw.text == text.strip()
    assert encode(raw, "m") == raw.text
    assert encode({"a": [1, raw]}, "m") == '{"a":[1,' + raw.text + "]}"
    assert len(digest(raw)) == 32
    if file.stem == "huge_numbers":
        with pytest.raises(UnreadableError, match="range of a float") as caught:
            decode(raw.text, "m")
        assert caught.value.path == 'm["messages"][0]["structuredContent"]["over"]'
        return
    value = decode(raw.text, "m")
    assert strict(value) == strict(json.loads(text))
    assert strict(decode(encode(value, "m"), "m")) == strict(value)
    assert (digest(raw) == digest(value)) is (file.stem != "duplicate_keys")


def test_corpus_is_there() -> None:
    assert len(CORPUS) == 18


def test_two_megabytes_of_base64_come_back() -> None:
    image = "data:image/png;base64," + base64.b64encode(random.Random(7).randbytes(1_530_000)).decode()
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}
    text = encode(message, "m")
    assert decode(text, "m") == message
    assert RawJSON(text).text == text


# -- what is written -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"b":1,"a":[true,null]}'),
        ((1, (2,), ()), "[1,[2],[]]"),
        ({}, "{}"),
        ("W\0s", r'"W\u0000s"'),
        ("the regex is \\u0000 and \0", r'"the regex is \\u0000 and \u0000"'),
        ("price \ud83d end", r'"price \ud83d end"'),
        ("\udc00\ud83dx", r'"\udc00\ud83dx"'),
        ("ok \ud83d" + "\ude80 done", '"ok 🚀 done"'),
        ({"\ud800": "\\\ud800"}, '{"\\ud800":"\\\\\\ud800"}'),
        ("😀 👩\u200d💻 𠀀 \u2028\ufeff\U0010ffff\x7f", '"😀 👩\u200d💻 𠀀 \u2028\ufeff\U0010ffff\x7f"'),
        ([9007199254740993, -7108510333361982070, 10**30], f"[9007199254740993,-7108510333361982070,{10**30}]"),
        ([1.0, -0.0, 1e2, 13.600000000000001, 5e-324], "[1.0,-0.0,100.0,13.600000000000001,5e-324]"),
        ({"é": 1, "e\u0301": 2}, '{"é":1,"e\u0301":2}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (defaultdict(list, a=[1]), '{"a":[1]}'),
    ],
)
def test_text_is_exact(value: object, text: str) -> None:
    assert encode(value, "m") == text
    assert RawJSON(text).text == text


def test_ordered_dict_keeps_the_order_it_shows() -> None:
    value = OrderedDict(a=1, b=2)
    value.move_to_end("a")
    assert encode(value, "m") == '{"b":2,"a":1}'


@quick
@given(values)
def test_value_comes_back_with_types_and_key_order(value: object) -> None:
    text = encode(value, "m")
    assert strict(decode(text, "m")) == strict(value)
    assert text.encode().decode() == text
    assert RawJSON(text).text == text


@quick
@given(values)
def test_both_halves_say_the_same(value: object) -> None:
    text = encode(value, "m")
    assert jsontext._write(value, "m", 10**6) == text
    assert strict(_jsonreader.Reader(text, "m", _jsonreader.VALUES, UnreadableError).read()) == strict(json.loads(text))


def test_list_of_messages_keeps_the_text_of_each() -> None:
    raw = RawJSON(' {"a" : 1.10,\r\n "a":2} ')
    assert raw.text == '{"a" : 1.10,\r\n "a":2}'
    assert encode([raw, {"x": raw}, 3], "messages") == f'[{raw.text},{{"x":{raw.text}}},3]'
    assert encode([], "messages") == "[]"
    with pytest.raises(UnstorableError) as caught:
        encode([{}, {"a": [b""]}], "messages")
    assert caught.value.path == 'messages[1]["a"][0]'
    with pytest.raises(UnstorableError, match="larger") as caught:
        encode("x" * 20, "messages[1]", max_bytes=10)
    assert caught.value.path == "messages[1]"


# -- Enums and other relatives of plain types ------------------------------------------------------------


class Plain(str, enum.Enum):  # noqa: UP042
    A = "a"


class Strong(enum.StrEnum):
    A = "a"


class Whole(enum.IntEnum):
    ONE = 1


class Part(float, enum.Enum):
    HALF = 0.5


class Flag(enum.IntFlag):
    A = 1
    B = 2


class Twofold(str, enum.Enum):  # noqa: UP042
    A = ("text", "value")

    def __new__(cls, text: str, value: str) -> Twofold:
        member = str.__new__(cls, text)
        member._value_ = value
        return member


class Ambiguous(int, enum.Enum):
    A = 1

    def __new__(cls, number: int) -> Ambiguous:
        member = int.__new__(cls, number)
        member._value_ = float(number)
        return member


@pytest.mark.parametrize(
    ("member", "text"),
    [(Plain.A, '"a"'), (Strong.A, '"a"'), (Whole.ONE, "1"), (Part.HALF, "0.5"), (Flag.A | Flag.B, "3")],
)
def test_enum_member_that_is_a_plain_value_is_stored_as_it(member: Any, text: str) -> None:
    assert encode([member], "m") == f"[{text}]"
    assert decode(text, "m") == member
    assert digest({"x": member}) == digest({"x": member.value})


def test_enum_member_as_key() -> None:
    assert encode({Strong.A: 1}, "m") == '{"a":1}'


@dataclasses.dataclass
class Record:
    x: int = 1


class Model:
    def model_dump(self) -> None: ...


class Array:
    def tolist(self) -> None: ...


class NumpyLike(float):
    def tolist(self) -> None: ...


class Secret(str):
    def __str__(self) -> str:
        return "***"


Big = type("Big", (int,), {})
Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (b"\xff\xfe\0", "base64"),
        (bytearray(b"x"), "base64"),
        (memoryview(b"x"), "base64"),
        ({1}, "a list"),
        (datetime.datetime(2026, 1, 1), ".isoformat()"),
        (datetime.date(2026, 1, 1), ".isoformat()"),
        (decimal.Decimal("1.10"), "str()"),
        (uuid.UUID(int=0), "str()"),
        (Path("/"), "str()"),
        (Record(), "dataclasses.asdict"),
        (Model(), ".model_dump(mode='json')"),
        (Array(), ".tolist()"),
        (NumpyLike(1.0), ".tolist()"),
        (Pair(1, 2), "._asdict()"),
        (Secret("hush"), "plain str"),
        (Big(3), "plain int"),
        (Twofold.A, ".value"),
        (Ambiguous.A, ".value"),
        (enum.Enum("Loose", "A").A, ".value"),  # type: ignore[attr-defined]
        (Counter("aab"), "dict()"),
        (UserDict(), "dict()"),
        ({}.keys(), "a list"),
        (range(3), "list()"),
        (iter([1]), "list()"),
        (complex(1), "make it of dict"),
        (object(), "make it of dict"),
        (len, "make it of dict"),
        (Plain, "list()"),
        (float("nan"), "nan: use None"),
        (float("-inf"), "-inf: use None"),
        (10**5000, "digits"),
        ({1: "x"}, "key of type int"),
        ({None: "x"}, "key of type NoneType"),
        ({True: "x"}, "key of type bool"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unstorable_value_is_refused_with_path_and_remedy(value: object, remedy: str) -> None:
    error = refused({"content": [{"type": "json", "json": {"row": ({"age": value},)}}]})
    assert error.path == 'state["content"][0]["json"]["row"][0]["age"]'
    assert remedy in error.reason
    assert len(str(error)) < 250
    assert "hush" not in str(error)
    with pytest.raises(UnstorableError) as caught:
        digest({"x": value}, "state")
    assert caught.value.path == 'state["x"]'


def test_every_nonfinite_number_is_found_by_its_path() -> None:
    for bad in ("nan", "inf", "-inf"):
        assert refused([0.5] * 700 + [float(bad)] + [0.5] * 67).path == "state[700]"


def test_unstorable_key_is_refused_at_its_object() -> None:
    assert refused({"a": {Secret("k"): 1}}).path == 'state["a"]'
    assert refused({"a": [{"x": 1, 2: 3}]}).path == 'state["a"][0]'


def test_keys_that_become_one_in_json_are_refused() -> None:
    error = refused({"x": {"\ud83d\ude80": 1, "🚀": 2}})
    assert "same in JSON" in error.reason
    assert error.path == 'state["x"]'


def test_long_and_odd_keys_give_a_short_printable_path() -> None:
    error = refused({"\0\ud800" + "k" * 1000: nested(20, b"")})
    assert len(error.path) < 200
    assert error.path.startswith(r'state["\u0000\ud800kkk')
    assert "…" in error.path
    assert error.path.encode().decode().isprintable()


# -- limits ----------------------------------------------------------------------------------------------


def at_depth_of_stack(call: Callable[[], Any], left: int) -> Any:
    """Call with only that many frames left before Python gives up."""

    def descend(n: int) -> Any:
        return call() if n <= 0 else descend(n - 1)

    used = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        used, frame = used + 1, frame.f_back
    return descend(sys.getrecursionlimit() - used - left)


def test_depth_is_limited_exactly() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert encode(nested(MAX_DEPTH), "m") == text == RawJSON(text).text
    assert encode(decode(text, "m"), "m") == text
    assert encode(nested(MAX_DEPTH - 1, RawJSON('{"[[[[":"\\"[["}')), "m").count("[") == MAX_DEPTH + 5
    for value in (nested(MAX_DEPTH + 1), nested(MAX_DEPTH + 1, RawJSON("1")), nested(MAX_DEPTH, RawJSON("[]"))):
        assert "deeper than 500" in refused(value).reason
    for value in (nested(MAX_DEPTH + 1), nested(MAX_DEPTH, RawJSON("[]")), nested(2, RawJSON(text)), nested(5000)):
        error = refused({"a": value})
        assert "deeper than 500" in error.reason
        assert error.path.startswith('state["a"][0]') or isinstance(value[0][0], RawJSON)
        assert len(error.path) < 200
    for depth in (MAX_DEPTH + 1, 1_100, 100_000):
        for left, right in (("[", "]"), ('{"a":', "}")):
            with pytest.raises(UnstorableError, match="deeper than 500"):
                RawJSON(left * depth + "1" + right * depth)
            with pytest.raises(UnstorableError, match="deeper than 500"):
                RawJSON(left * depth)


def test_brackets_in_strings_are_not_depth() -> None:
    text = '["' + "[{" * 600 + r"\"[[\\" + '","' + "[" * 600 + r'\\\"",{"[":"[' + "[" * 600 + '"}]'
    assert RawJSON(text).text == text
    assert encode(nested(MAX_DEPTH - 2, RawJSON(text)), "m").endswith(text + "]" * (MAX_DEPTH - 2))
    with pytest.raises(UnstorableError, match="deeper than 500"):
        encode(nested(MAX_DEPTH - 1, RawJSON(text)), "m")


@pytest.mark.parametrize("depth", [40, 200, MAX_DEPTH])
def test_nearly_used_up_stack_makes_no_difference(depth: int) -> None:
    value = nested(depth - 2, {"b": [1.5], "a": None})
    text = encode(value, "m")
    assert at_depth_of_stack(lambda: encode(value, "m"), 30) == text
    assert at_depth_of_stack(lambda: encode(decode(text, "m"), "m"), 30) == text
    assert at_depth_of_stack(lambda: RawJSON(text).text, 30) == text
    assert at_depth_of_stack(lambda: (digest(value), digest(RawJSON(text))), 30) == (digest(value),) * 2
    with pytest.raises(UnstorableError):
        at_depth_of_stack(lambda: encode(nested(MAX_DEPTH, [b""]), "m"), 30)


def test_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"self": loop})
    assert (refused({"a": loop}).path, refused({"a": loop}).reason) == (
        'state["a"][1]["self"]',
        "contains itself",
    )
    wide: dict[str, Any] = {}
    wide["x"] = [wide, wide, wide]
    assert refused(wide).path == 'state["x"][0]'
    shared = [1]
    assert encode([shared, shared, {"a": shared}], "m") == '[[1],[1],{"a":[1]}]'


def test_size_counts_bytes_of_utf8() -> None:
    for value, size in (
        ("ä" * 10, 22),
        ("🚀" * 5, 22),
        ("x" * 20, 22),
        ("\ud83d" * 3 + "xx", 22),
        (RawJSON("[ 1 ]"), 5),
    ):
        encoded = encode(value, "m", max_bytes=size)
        assert len(encoded.encode()) == size
        error = refused(value, max_bytes=size - 1)
        assert error.path == "state"
        assert f"{size - 1:,} bytes" in error.reason
        with pytest.raises(UnstorableError, match="larger"):
            RawJSON(encoded, size - 1)
    assert refused([RawJSON('"ää"')], max_bytes=7).path == "state"


@pytest.mark.parametrize("value", [["x" * 1000] * 1000, [{"k" * 1000: 1}] * 1000, [[1] * 1000] * 1000])
def test_value_that_cannot_fit_is_refused_before_its_text_is_made(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsontext, "_to_text", pytest.fail)
    monkeypatch.setattr(jsontext, "_write", pytest.fail)
    assert "larger" in refused(value, max_bytes=900_000).reason


def test_value_that_would_grow_without_bound_is_refused_at_once() -> None:
    bomb: Any = "x" * 1000
    for _ in range(60):
        bomb = [bomb] * 10
    assert "larger" in refused(bomb, max_bytes=100_000).reason
    assert "larger" in refused([bomb, RawJSON("1")], max_bytes=100_000).reason
