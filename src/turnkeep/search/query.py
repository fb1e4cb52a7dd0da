"""What somebody looks for, as Postgres takes it (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnkeep.errors import InvalidInputError

_LONGEST = 10_000
_MOST_LEXEMES = 24
_LONG_RUN = re.compile(r"\S{400,}")
_LONG_WORD = re.compile(r"\w{400,}")
_DASHES = re.compile(r"-+(?=[\s-]|$)")
_LEXEME = re.compile(r"'((?:[^']|'')*)'")
_EXCLUDED = re.compile(r"!\(*\s*$")


@dataclass(frozen=True)
class Wanted:
    """A query as the database has read it.

    `words` is the text of its tsquery, `lexemes` what that looks for, the first few of them, and `some` whether a text
    that has only some of those is better than none: not where a phrase was asked for, or something excluded. What it
    looks for besides is `left_out`: of a turn that has not all of the words it says nothing.
    """

    words: str
    lexemes: tuple[str, ...]
    some: bool
    left_out: tuple[str, ...] = ()


def checked_query(query: object) -> str:
    """Return a query if it can be one."""
    if not isinstance(query, str):
        raise InvalidInputError(f"query: expected text, got {type(query).__name__}")
    if not query.strip():
        raise InvalidInputError("query: it is empty; say what is looked for")
    if len(query) > _LONGEST:
        raise InvalidInputError(f"query: {len(query):,} characters; at most {_LONGEST:,} are allowed")
    if "\0" in query or re.search("[\ud800-\udfff]", query):
        raise InvalidInputError("query: text with NUL or a lone surrogate is in no document")
    return query


def as_words(query: str) -> str:
    """A query without what Postgres would fail over: words that no index holds, and dashes before nothing."""
    query = _LONG_RUN.sub(lambda run: _LONG_WORD.sub(" ", re.sub(r"[\W_]+", " ", run[0])), query)
    return _DASHES.sub(" ", query)


def wanted(query: str, words: str) -> Wanted:
    """What a query looks for, by the text of the tsquery that the database has made of it."""
    lexemes: dict[str, None] = {}
    excludes = False
    for part in _LEXEME.finditer(words):
        if _EXCLUDED.search(words[: part.start()]):
            excludes = True
        else:
            lexemes[part[1].replace("''", "'").replace("\\\\", "\\")] = None
    every = tuple(lexemes)
    some = '"' not in query and not excludes
    return Wanted(words, every[:_MOST_LEXEMES], some, every[_MOST_LEXEMES:])
