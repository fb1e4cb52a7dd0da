"""The pure parts of a search: snippets, queries, rankings made one, which provider is meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.errors import ConfigurationError, InvalidInputError
from turnkeep.search import LocalEmbeddings, OpenAIEmbeddings, provider_from_settings
from turnkeep.search.query import as_words, wanted
from turnkeep.search.snippets import snippet

WORDS = st.sampled_from(["refund", "Refunds", "order", "the", "a", "\n", "…", "längst", "漢字"])
TEXTS = st.one_of(st.text(max_size=2000), st.lists(WORDS, max_size=400).map(" ".join))


@given(text=TEXTS, words=st.sets(st.sampled_from(["refund", "order", "a", "漢", ""])), width=st.integers(60, 300))
def test_a_snippet_is_one_line_of_the_text_with_marks_in_order(text: str, words: set[str], width: int) -> None:
    part = snippet(text, words - {""}, width)
    line = " ".join(text.split())
    assert len(part.text) <= width
    assert "\n" not in part.text
    assert part.text.removeprefix("…").removesuffix("…").strip() in line
    ends = [0, *(end for mark in part.marks for end in mark)]
    assert ends == sorted(ends)
    for start, stop in part.marks:
        assert any(part.text[start:stop].casefold().startswith(word[:-1] or word) for word in words if word)
    if len(line) <= width:
        assert part.text == line


def test_a_snippet_is_where_the_most_words_are() -> None:
    text = "order " + "x " * 300 + "a refund of an order" + " y" * 300
    part = snippet(text, {"refund", "order"})
    assert "a refund of an order" in part.text
    assert part.text.startswith("…")
    assert part.text.endswith("…")
    assert [part.text[start:stop] for start, stop in part.marks] == ["refund", "order"]


def test_inflected_words_are_marked_and_longer_ones_are_not() -> None:
    part = snippet("Refunded orders, orderliness; stories", {"refund", "order", "stori"})
    assert [part.text[start:stop] for start, stop in part.marks] == ["Refunded", "orders", "stories"]


def test_what_is_excluded_is_no_word_to_look_for() -> None:
    found = wanted("a -b", "'a' & !'b'")
    assert (found.lexemes, found.some) == (("a",), False)
    assert wanted("it's", "'it''s' | 'x\\\\y'").lexemes == ("it's", "x\\y")
    assert wanted('"a b"', "'a' <-> 'b'").some is False
    assert wanted("a b", "'a' & 'b'").some is True


@pytest.mark.parametrize(
    ("query", "words"),
    [("a -b", "a -b"), ("a - b", "a   b"), ("--b", " -b"), ("well-known", "well-known"), ("x" * 500, " ")],
)
def test_only_what_postgres_fails_over_is_taken_out_of_a_query(query: str, words: str) -> None:
    assert as_words(query) == words


def test_a_provider_is_named_by_argument_before_the_environment() -> None:
    there = {
        "TURNKEEP_EMBEDDINGS": "http://gpu:8000/v1",
        "TURNKEEP_EMBEDDINGS_MODEL": "bge",
        "TURNKEEP_EMBEDDINGS_DIMENSIONS": "256",
    }
    assert provider_from_settings(environ={}) is None
    assert provider_from_settings("none", environ=there) is None
    assert isinstance(provider_from_settings("local", environ=there), LocalEmbeddings)
    of_server = provider_from_settings(environ=there)
    assert isinstance(of_server, OpenAIEmbeddings)
    assert (of_server.name, of_server.dimensions) == ("bge:256", 256)
    named = provider_from_settings("http://other/v1", "e5", environ={})
    assert named is not None
    assert (named.name, named.dimensions) == ("e5", None)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"TURNKEEP_EMBEDDINGS": "openai"}, "neither local, none nor"),
        ({"TURNKEEP_EMBEDDINGS": "http://gpu/v1"}, "TURNKEEP_EMBEDDINGS_MODEL"),
        (
            {
                "TURNKEEP_EMBEDDINGS": "http://gpu/v1",
                "TURNKEEP_EMBEDDINGS_MODEL": "m",
                "TURNKEEP_EMBEDDINGS_DIMENSIONS": "-1",
            },
            "TURNKEEP_EMBEDDINGS_DIMENSIONS",
        ),
        ({"TURNKEEP_EMBEDDINGS": "http://", "TURNKEEP_EMBEDDINGS_MODEL": "m"}, "no http address"),
    ],
)
def test_a_provider_that_cannot_be_is_said(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        provider_from_settings(environ=environ)


def test_settings_of_a_server_are_checked() -> None:
    for wrong in ({"dimensions": 0}, {"batch_texts": 0}, {"timeout": -1}, {"model": ""}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            OpenAIEmbeddings(**{"model": "m", **wrong})  # type: ignore[arg-type]


async def test_local_embeddings_need_neither_network_nor_home_nor_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging
    import math
    import socket

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(socket.socket, "connect", None)
    handlers = [*logging.getLogger().handlers]
    provider = LocalEmbeddings()
    cat, kitten, server = await provider.embed(["a cat", "a kitten", "the server crashed"])
    assert len(cat) == provider.dimensions == 256

    def near(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)

    assert near(cat, kitten) > near(cat, server)
    assert await provider.embed(["a cat"]) == [cat]
    assert await provider.embed([]) == []
    (odd,) = await provider.embed(["\ud800 \0"])
    assert all(map(math.isfinite, odd))
    assert logging.getLogger().handlers == handlers
