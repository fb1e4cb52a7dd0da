"""What tables and columns hold is told in the database itself, and writing it down again waits for nobody."""

from __future__ import annotations

import psycopg

import turnkeep

COMMENT = "SELECT col_description('turnkeep.message'::regclass, 1), obj_description('turnkeep.message'::regclass)"


def test_every_client_can_read_what_a_table_holds(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        assert connection.execute(COMMENT).fetchone() == (
            "Whose message it is.",
            "The messages, each once: an append-only log for every branch.",
        )


def test_comments_that_are_there_are_not_written_again(dsn: str) -> None:
    with psycopg.connect(dsn) as vacuuming, psycopg.connect(dsn, autocommit=True) as connection:
        # The lock that a vacuum holds, for hours perhaps, and that writing a comment waits for.
        vacuuming.execute("LOCK TABLE turnkeep.message, turnkeep.checkpoint IN SHARE UPDATE EXCLUSIVE MODE")
        connection.execute("UPDATE turnkeep.migration SET digest = 'of another release' WHERE number = 0")
        connection.execute("COMMENT ON TABLE turnkeep.branch IS 'out of date'")
        assert turnkeep.migrate(dsn, timeout=2).current
        told = connection.execute("SELECT obj_description('turnkeep.branch'::regclass)").fetchone()
        assert told is not None
        assert told[0].startswith("A line of turns")
