"""A text in chunks: nothing between them is lost, none is too long, and borders are where a reader would put them."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.search.chunks import CHUNK, cut

PARAGRAPH = "One sentence of some length. Another one, that asks something? And a third! "


def test_a_short_text_is_one_chunk_and_an_empty_one_none() -> None:
    assert cut("  hello  ").chunks == ("hello",)
    assert cut("").chunks == cut(" \n ").chunks == ()


@pytest.mark.parametrize(
    ("separator", "ending"), [("\n\n", "end"), ("\n", "end"), (". ", "."), (" ", "word")], ids=repr
)
def test_it_is_cut_at_the_border_that_weighs_most(separator: str, ending: str) -> None:
    unit = {"\n\n": "a line\nof words. end", "\n": "words. end", ". ": "some words", " ": "word"}[separator]
    chunks = cut(separator.join([unit] * 2000)).chunks
    assert all(chunk.endswith(ending) for chunk in chunks[:-1])
    assert all(CHUNK / 2 <= len(chunk) <= CHUNK for chunk in chunks[:-1])


def test_what_stands_across_a_border_is_found_in_the_next_chunk() -> None:
    words = [f"w{number}" for number in range(3000)]
    chunks = cut(" ".join(words)).chunks
    for one, other in pairwise(chunks):
        assert other.split()[0] in one.split()
        assert one.split()[-1] in other.split()


def test_a_script_whose_characters_are_tokens_gets_shorter_chunks() -> None:
    assert max(map(len, cut("漢字" * 5000).chunks)) == CHUNK // 4
    assert max(map(len, cut("привет мир " * 2000).chunks)) <= CHUNK // 2 + CHUNK // 10


def test_no_character_is_divided() -> None:
    for text in ("e\u0301" * 5000, "👨\u200d👩\u200d👧" * 2000):
        for chunk in cut(text).chunks:
            assert not unicodedata.combining(chunk[0])
            assert chunk[0] != "\u200d"
            assert chunk[-1] != "\u200d"


def test_a_text_without_end_is_cut_short_and_how_much_is_left_is_said() -> None:
    long = cut("x" * 60_000_000)
    assert len(long.chunks) == 1000
    assert long.left_out > 57_000_000
    text = PARAGRAPH * 500
    some = cut(text, most=3)
    assert some.chunks == cut(text).chunks[:3]
    assert len(text) - 3 * CHUNK <= some.left_out < len(text) - 3 * CHUNK / 2


@given(
    st.lists(st.sampled_from([" ", "\n", "\n\n", ". ", "! ", "  "]), max_size=80),
    st.integers(min_value=12, max_value=60),
    st.integers(min_value=0, max_value=30),
)
def test_every_word_is_whole_in_a_chunk(borders: list[str], chunk: int, overlap: int) -> None:
    words = [f"w{number}" for number in range(len(borders))]
    text = "".join(word + border for word, border in zip(words, borders, strict=True))
    found = {word.rstrip(".!") for one in cut(text, chunk=chunk, overlap=overlap).chunks for word in one.split()}
    assert found == set(words)


@given(
    st.text(alphabet=st.sampled_from("ab \n.。é漢👩\u200d\u0301!?"), max_size=400),
    st.integers(min_value=4, max_value=60),
    st.integers(min_value=0, max_value=20),
)
def test_no_chunk_is_too_long_or_empty_and_each_comes_further(text: str, chunk: int, overlap: int) -> None:
    done = cut(text, chunk=chunk, overlap=overlap)
    assert done.left_out == 0
    assert all(one and len(one) <= chunk and one in text for one in done.chunks)
    assert bool(done.chunks) == bool(text.strip())
    if done.chunks:
        assert text.lstrip().startswith(done.chunks[0])
        assert text.rstrip().endswith(done.chunks[-1])
