"""The reference is what the code says, and nothing that a reader may set or call is left out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psycopg
import pytest

import turnkeep
from tools.reference import settings, sql
from tools.reference.__main__ import FOLDER, PAGES
from tools.reference.markdown import anchor
from turnkeep import testing


@pytest.mark.parametrize(("name", "text"), PAGES.items(), ids=PAGES)
def test_the_page_is_current(name: str, text: Callable[[], str]) -> None:
    assert (FOLDER / name).read_text() == text(), "run python -m tools.reference"


def test_the_page_about_sql_is_current(dsn: str) -> None:
    assert (FOLDER / "sql.md").read_text() == sql.text(dsn), "run python -m tools.reference"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("ALTER TABLE turnkeep.message ADD COLUMN novelty int", "message.novelty has no comment"),
        ("ALTER TABLE turnkeep.message DROP COLUMN size CASCADE", "message.size is told about"),
        ("CREATE VIEW turnkeep.novelty AS SELECT 1 AS one", "novelty has no comment"),
        ("CREATE FUNCTION turnkeep.novelty_v1() RETURNS int LANGUAGE sql AS 'SELECT 1'", "function novelty_v1 has no"),
    ],
    ids=["column", "no column", "view", "function"],
)
def test_what_the_schema_has_must_be_documented(dsn: str, change: str, what: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(change.encode())
    with pytest.raises(LookupError, match=what):
        sql.text(dsn)


def test_every_public_name_has_a_place() -> None:
    text = "".join((FOLDER / name).read_text() for name in ("python.md", "errors.md"))
    names = [*turnkeep.__all__, *(f"testing.{name}" for name in testing.__all__)]
    assert not [name for name in names if f"### `{name}`" not in text and f"| `{name}` |" not in text]


def test_a_limit_must_be_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    told = dict(settings.LIMITS)
    last, _ = told.popitem()
    monkeypatch.setattr(settings, "LIMITS", told)
    with pytest.raises(LookupError, match=last):
        settings.text()


@pytest.mark.parametrize("undocumented", ["open", "migrate", "Agent", "tool", "Worker"])
def test_a_keyword_must_be_documented(monkeypatch: pytest.MonkeyPatch, undocumented: str) -> None:
    told = dict(settings.KEYWORDS[undocumented])
    last, _ = told.popitem()
    monkeypatch.setattr(settings, "KEYWORDS", {undocumented: told})
    with pytest.raises(LookupError, match=last):
        settings.text()


def test_an_environment_variable_must_be_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TURNKEEP_EMBEDDED_DIR" in settings.variables()
    told: Mapping[str, str] = {k: v for k, v in settings.ENVIRONMENT.items() if k != "TURNKEEP_EMBEDDED_DIR"}
    monkeypatch.setattr(settings, "ENVIRONMENT", told)
    with pytest.raises(LookupError, match="TURNKEEP_EMBEDDED_DIR"):
        settings.text()


def test_headings_are_found_by_their_fragments() -> None:
    assert anchor("`AsyncStore.wait_reply`") == "asyncstorewait_reply"
    assert anchor("`turnkeep embedded status`") == "turnkeep-embedded-status"
