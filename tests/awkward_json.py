"""JSON text that is hard to read, to store and to show: valid, nearly valid, and no JSON at all."""

from __future__ import annotations

from hypothesis import strategies as st

from turnkeep.jsontext import MAX_DEPTH

ANY_CHARACTER = st.characters(exclude_categories=())
STORABLE = st.characters(exclude_categories=["Cs"], exclude_characters='"\\', min_codepoint=0x20)

_ESCAPES = r"""
\u0000 \u0001 \u001f \u007f \u0080 \uFFFF \ufffe \ufeff \u2028 \ud83d \uDE80 \ud83d\ude80 \uDBFF\uDFFF \ude80\ud83d
\" \\ \/ \b \f \n \r \t \\u0000 \\\u0000 \\\\ \u005c \u0022 \u005Cu0000
"""
ESCAPES = _ESCAPES.split()
KEYS = [
    *("", " ", "__proto__", "constructor", "$", "$.**", "a.b", "0", "-1", "true", "null", "role", "content"),
    *(
        "sub_step",
        "turnkeep_unrepresentable",
        "tool_call_id",
        "id",
        "name",
        "function",
        r"\u0000",
        r"\ud800",
        r"\u0061",
    ),
]
NUMBERS = [
    *("0", "-0", "-0.0", "1.0", "1e2", "1E+2", "100.00", "0e0", "0E-0", "1e400", "-1e400", "1e-400", "5e-324", "1e308"),
    *("1e309", "9007199254740993", "-7108510333361982070", "123456789012345678901234567890", "1e0005", "1e0999"),
    *("1e4299", "1e4300", "-1e4300", "1e5000", "1e131071", "1e131072", "1e-16383", "1e-16384", "9" * 254 + "e99"),
    *("9" * 4300, "9" * 4301, "-" + "9" * 5000, "1" + "0" * 5000 + ".5", "0." + "1" * 16383, "0." + "1" * 20000),
    *("1e2147483647", "1e-2147483648", "1e99999999999999999999", "0e99999999999999999999", "0." + "0" * 400 + "1"),
]
SPACES = ["", "", "", " ", "\n", "\t", "\r", "\r\n", " \t\n\r "]
_BROKEN = r"""
{ } [ ] , : " ' "a "\ "\x" "\u12" "\u12g4" "\ud83d\u" NaN -Infinity Infinity nan inf undefined True None nul truex 01
-01 +1 1. .5 1e 1e+ 1.e1 0x1 1_0 // /* # {a:1} [1,] {"a":1,} [,] {"a"} {"a":} ٣ １ \u0000 ]]] }}} [[[ {"a":[ "\ud800"
"""
BROKEN = _BROKEN.split()
JUNK = [
    "\ufeff",
    "\x00",
    "\x01",
    "\x0b",
    "\x0c",
    "\x1f",
    "\x7f",
    "\x85",
    "\xa0",
    "\u2028",
    "\u3000",
    "\ud83d",
    "\ude80",
]


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """A number as JSON may spell it, of any length and size."""
    if draw(st.booleans()):
        return draw(st.sampled_from(NUMBERS))
    whole = draw(st.sampled_from(["0", "1", "9", "12"])) if draw(st.booleans()) else str(draw(st.integers(0, 10**40)))
    whole += "" if whole == "0" else draw(st.sampled_from(["", "0", "7"])) * draw(st.integers(0, 5000))
    fraction = "." + draw(st.sampled_from("0159")) * draw(st.integers(1, 5000)) if draw(st.booleans()) else ""
    exponent = ""
    if draw(st.booleans()):
        digits = draw(st.sampled_from(["", "0", "000"])) + str(draw(st.integers(0, 20_000)))
        exponent = draw(st.sampled_from("eE")) + draw(st.sampled_from(["", "+", "-"])) + digits
    return draw(st.sampled_from(["", "-"])) + whole + fraction + exponent


def quoted(keys: bool = False) -> st.SearchStrategy[str]:
    """A string as JSON may spell it: every escape, every character."""
    pieces = st.lists(st.sampled_from(ESCAPES) | st.text(STORABLE, max_size=6), max_size=6).map("".join)
    long = st.builds(
        lambda piece, times: piece * times, st.sampled_from(["x", "é", "🚀", r"\u0000", r"\\"]), st.integers(0, 3000)
    )
    return ((st.sampled_from(KEYS) | pieces) if keys else (pieces | pieces | long)).map(lambda text: f'"{text}"')


@st.composite
def _array(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    space = draw(st.sampled_from(SPACES))
    return "[" + space + f"{space},{space}".join(draw(st.lists(inner, max_size=6))) + space + "]"


@st.composite
def _object(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    space = draw(st.sampled_from(SPACES))
    pairs = [f"{draw(quoted(keys=True))}{space}:{space}{draw(inner)}" for _ in range(draw(st.integers(0, 6)))]
    if draw(st.booleans()) and pairs:
        pairs.append(draw(st.sampled_from(pairs)))  # duplicate keys
    return "{" + space + f"{space},{space}".join(pairs) + space + "}"


@st.composite
def _wide(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """Very many elements, or keys."""
    element, count = draw(inner.filter(lambda text: len(text) < 50)), draw(st.integers(0, 3000))
    if draw(st.booleans()):
        return f"[{','.join([element] * count)}]"
    return "{" + ",".join(f'"{number:x}":{element}' for number in range(count)) + "}"


def values() -> st.SearchStrategy[str]:
    """The text of any JSON value, not deep."""
    plain = st.sampled_from(["true", "false", "null", "{}", "[]"]) | numbers() | quoted()
    return st.recursive(plain, lambda inner: _array(inner) | _object(inner) | _wide(inner), max_leaves=12)


@st.composite
def deep(draw: st.DrawFn, most: int = MAX_DEPTH) -> str:
    """The text of a value that nests about as deep as is allowed, at most `most` levels."""
    left = draw(st.lists(st.sampled_from(["[", '{"a":', "[0,", '{"[":"{",\t"":']), min_size=1, max_size=4))
    depth = draw(st.sampled_from([*range(most - 3, most + 1), 40, 200]).filter(lambda depth: depth <= most))
    opened = [left[level % len(left)] for level in range(depth)]
    closed = ["]" if text.startswith("[") else "}" for text in reversed(opened)]
    return "".join(opened) + draw(numbers() | quoted() | st.just("null")) + "".join(closed)


def objects(most_deep: int = MAX_DEPTH) -> st.SearchStrategy[str]:
    """The text of a JSON object: a message."""
    wrapped = (values() | deep(most_deep - 1)).map(lambda text: f'{{"role":"user","content":{text}}}')
    return _object(values()) | wrapped | wrapped


def valid() -> st.SearchStrategy[str]:
    """The text of any JSON value, at any depth that is allowed."""
    return values() | deep() | objects()


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """Text that was JSON, cut, joined and sprinkled with what does not belong there."""
    text = draw(valid() | st.sampled_from(BROKEN))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = start + draw(st.integers(0, 3))
        match draw(st.integers(0, 4)):
            case 0:
                text = text[:start]
            case 1:
                text = text[start:]
            case 2:
                text = text[:start] + text[stop:]
            case 3:
                text = text[:start] + draw(st.sampled_from([*BROKEN, *JUNK, *SPACES, *NUMBERS[:20]])) + text[stop:]
            case _:
                text = text[:start] + draw(ANY_CHARACTER) + text[stop:]
    return text


def junk() -> st.SearchStrategy[str]:
    """No JSON at all: bytes taken for text, brackets without end, odd white space."""
    data = st.binary(max_size=60)
    endless = st.sampled_from(["[", '{"a":', "[[[]", '"', "\\", "1", "-", " "])
    return (
        data.map(lambda some: some.decode("utf-8", "surrogateescape"))
        | data.map(lambda some: (some + some).decode("utf-16-le", "surrogatepass"))
        | st.text(ANY_CHARACTER, max_size=20)
        | st.builds(lambda text, times: text * times, endless, st.integers(0, 20_000))
        | st.builds(lambda odd, text: odd + text, st.sampled_from(JUNK), values())
    )


def any_text() -> st.SearchStrategy[str]:
    """All of these."""
    return valid() | mangled() | junk()
