"""What a search of words costs among very many turns: the newest of common ones, all of rare ones, and no more."""

from __future__ import annotations

import psycopg
from psycopg import sql

from turnkeep import AsyncStore
from turnkeep.search import Search
from turnkeep.store._search_statements import statement
from turnkeep.store._searching import Scope

TURNS = 30_000

# A word in every turn, one in every hundredth, and many that are in few.
MANY = """
INSERT INTO turnkeep.document (conversation_id, branch, turn_index, chunk, text, tsv, created_at)
SELECT %(own)s, 0, n, 0, 'common', to_tsvector('simple', concat_ws(' ', 'common', 'other' || n %% 7,
    CASE WHEN n %% 100 = 0 THEN 'sometimes' END, 'rare' || n / 3)), now() + n * interval '1 s'
FROM generate_series(0, %(count)s - 1) AS n
"""


async def fill(store: AsyncStore, dsn: str) -> None:
    own = (await store.conversation("many")).conversation_id
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(MANY, {"own": own, "count": TURNS})
        # Which words are common is known where an administrator lets the planner keep that (docs/how-to/search.md).
        connection.execute("ALTER TABLE turnkeep.document ALTER COLUMN tsv SET STATISTICS 100")
        connection.execute("VACUUM ANALYZE turnkeep.document")


def plan(dsn: str, words: str) -> str:
    """How the newest turns with these words are found."""
    pieces = {
        "number": sql.SQL("1"),
        "words": sql.Placeholder("words"),
        "joined": sql.SQL(""),
        "scope": sql.SQL("true"),
    }
    newest = statement("newest_with", "turnkeep", **pieces)
    asked = {**vars(Scope()), "words": words, "window": 1000}
    with psycopg.connect(dsn) as connection:
        return str(connection.execute(b"EXPLAIN " + newest, asked).fetchall())


async def test_common_words_are_looked_for_from_the_newest_and_rare_ones_by_their_index(
    store: AsyncStore, dsn: str
) -> None:
    await fill(store, dsn)
    assert "document_newest" in plan(dsn, "'common'")
    assert "document_words" in plan(dsn, "'rare77'")
    assert "Seq Scan" not in plan(dsn, "'common'") + plan(dsn, "'rare77'") + plan(dsn, "'sometimes'")
    search = Search(store)
    found = await search.search("common sometimes rare77", limit=5)
    assert {231, 232, 233} >= {hit.turn_index for hit in found.hits[:3]}  # rare, and old
    assert not found.all_words
    assert (await search.search("rare77")).all_words
    old = await search.search("common", limit=1000, conversation="many")
    assert len(old.hits) == 1000
    assert min(hit.turn_index for hit in old.hits) >= TURNS - 2000
