"""No text that can be stored makes a query fail, or its neighbours unreadable (G3, G9). `make fuzz` tries more."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

import turnkeep
from tests import awkward_json
from tests.fuzzing import examples
from turnkeep import RawJSON
from turnkeep.embedded._programs import find_wheel

USER = {"role": "user", "content": "go"}
FORGET = ("checkpoint", "message", "branch", "request", "document", "conversation")

texts = st.lists(awkward_json.objects(), min_size=1, max_size=4)
states = awkward_json.valid()


class Reader:
    """Reads every view there is: by psycopg in text and in binary, and by psql."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.exact = psycopg.connect(dsn, autocommit=True)
        set_json_loads(lambda data: json.loads(data, parse_int=Decimal, parse_float=Decimal), self.exact)
        rows = self.connection.execute(
            "SELECT viewname FROM pg_views WHERE schemaname = 'turnkeep' ORDER BY 1"
        ).fetchall()
        self.views: list[str] = [name for (name,) in rows]

    def rows(self, view: str) -> list[dict[str, Any]]:
        """The rows of a view, after it was read in every way."""
        query = sql.SQL("SELECT * FROM {}").format(sql.Identifier("turnkeep", view))
        for binary in (False, True):
            with self.connection.cursor(binary=binary) as cursor:
                cursor.execute(query).fetchall()
        with self.exact.cursor(binary=True, row_factory=dict_row) as exact:
            return exact.execute(query).fetchall()

    def psql(self) -> None:
        """Let psql print every view."""
        commands = [part for view in self.views for part in ("-c", f"TABLE turnkeep.{view}")]
        program = find_wheel() / "bin" / "psql"
        ran = subprocess.run([program, "-XqAv", "ON_ERROR_STOP=1", *commands, self.dsn], capture_output=True)
        assert ran.returncode == 0, ran.stderr

    def forget(self) -> None:
        """Empty the tables."""
        for table in FORGET:
            self.connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("turnkeep", table)))


@pytest.fixture
def reader(dsn: str) -> Iterator[Reader]:
    opened = Reader(dsn)
    yield opened
    opened.connection.close()
    opened.exact.close()


@pytest.fixture
def own_store(dsn: str) -> Iterator[turnkeep.Store]:
    with turnkeep.open_sync(dsn) as store:
        yield store


def is_shown(shown: Any, text: str) -> bool:
    """Whether a value read from a view is that of a text, to the last digit, or says why it can't be."""
    if isinstance(shown, dict) and set(shown) - {"sub_step"} == {"turnkeep_unrepresentable"}:
        return True
    return bool(shown == json.loads(text, parse_int=Decimal, parse_float=Decimal))


@examples(40)
@given(texts=texts, state=states)
def test_whatever_is_stored_every_view_can_be_read(
    own_store: turnkeep.Store, reader: Reader, texts: list[str], state: str
) -> None:
    reader.forget()
    raw = [RawJSON(text) for text in texts]
    branch = own_store.conversation("c")
    branch.begin_turn([USER, *raw, USER], state=RawJSON(state), key="k")
    branch.save(raw, tool_calls=raw, state=raw[0])
    branch.save([USER], tool_results=raw, answers=branch.pending, state=RawJSON(state), final=True)
    own_store.post("c", raw, key="waiting")
    own_store.fork("c", at=(0, 1))

    restored = own_store.restore("c")
    user = '{"role":"user","content":"go"}'
    whole = [user, *(one.text for one in raw), user, *(one.text for one in raw), user]
    assert restored.message_texts == tuple(whole)
    assert restored.state_text == RawJSON(state).text
    assert restored.tool_results_text == f"[{','.join(one.text for one in raw)}]"
    seen = 0
    for view in reader.views:
        for row in reader.rows(view):
            messages = row.get("messages")
            if isinstance(messages, list):
                assert all(map(is_shown, messages, whole))
                assert messages[0] == USER
                seen += 1
            for calls in (row.get("tool_calls"), row.get("tool_results")):
                assert calls is None or is_shown(calls, f"[{','.join(one.text for one in raw)}]")
    assert seen >= 6
    reader.psql()


@examples(10)
@given(texts=texts)
def test_a_posted_text_is_taken_up_as_it_is(own_store: turnkeep.Store, reader: Reader, texts: list[str]) -> None:
    reader.forget()
    raw = [RawJSON(text) for text in texts]
    branch = own_store.conversation("c")
    own_store.post("c", raw, key="k")
    assert own_store.post("c", raw, key="k").repeated
    assert branch.take_request() is not None
    assert own_store.restore("c").message_texts == tuple(one.text for one in raw)
    assert branch.save([], final=True).final
