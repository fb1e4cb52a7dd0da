"""What the search's worker asks is found by index, however many documents are done already."""

from __future__ import annotations

import re
import uuid
from typing import Any

import psycopg
import pytest

from turnkeep.store._statements import statements

ROWS = 60_000
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("sql/stats.sql", "documents"): {"most": 100},
    ("sql/health.sql", "letters"): {"most": 100},
}
ASKED: dict[str, dict[str, Any]] = {
    "claim_fill": {"claim": uuid.UUID(int=1), "seconds": 60.0, "limit": 50, "lapsed": False},
    "claim_fill_of": {
        "claim": uuid.UUID(int=1),
        "seconds": 60.0,
        "limit": 50,
        "conversation": uuid.UUID(int=7),
        "over": True,
    },
    "claim_embed": {"claim": uuid.UUID(int=1), "seconds": 60.0, "limit": 50, "lapsed": False},
    "requeue": {"model": "m", "limit": 500},
    "retry_dead": {"limit": 500},
    "lag_fill": {},
    "lag_embed": {"model": "m"},
    "lag_dead": {},
    "lag_archived": {},
    "dead": {"limit": 10},
}


@pytest.fixture
def full(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A database of many documents, nearly all of them done."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute(
        "INSERT INTO turnkeep.conversation (conversation_id, external_id, created_at)"
        " SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid, n::text, now()"
        " FROM generate_series(1, %s) AS n",
        (ROWS // 20,),
    )
    connection.execute(
        "INSERT INTO turnkeep.document (conversation_id, branch, turn_index, text, model, next_try_at, error, tries)"
        " SELECT v.conversation_id, 0, t, CASE WHEN own > 2 THEN 'some text' END, CASE WHEN own > 5 THEN 'm' END,"
        " CASE WHEN own < 5 THEN now() END, CASE WHEN own = 5 THEN 'why' END,"
        " CASE WHEN own = 5 THEN 8 ELSE 0 END"
        " FROM turnkeep.conversation AS v CROSS JOIN generate_series(1, 20) AS t"
        " CROSS JOIN LATERAL (SELECT (random() * 1000 + 0 * t)::int AS own) AS o"
    )
    connection.execute("VACUUM ANALYZE turnkeep.document")
    return connection


def test_no_question_of_the_worker_reads_all_documents(full: psycopg.Connection[tuple[Any, ...]]) -> None:
    with full:
        own = {("sql/documents.sql", name): parameters for name, parameters in ASKED.items()}
        for (file, name), parameters in {**own, **OTHERS}.items():
            statement = statements("turnkeep", file)[name]
            rows = full.execute(b"EXPLAIN " + statement, parameters).fetchall()
            plan = "\n".join(line for (line,) in rows)
            assert not re.search(r"Seq Scan on document", plan), f"{name}:\n{plan}"
