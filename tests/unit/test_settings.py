"""Which database is meant, and what is said where none can be."""

from __future__ import annotations

import pytest

import turnkeep
from turnkeep import settings
from turnkeep.store import status

URL = "postgresql://boss:s3cret@db/app"


@pytest.mark.parametrize(
    ("argument", "environ", "named"),
    [
        (URL, {"TURNKEEP_DATABASE_URL": "other"}, URL),
        (None, {"TURNKEEP_DATABASE_URL": URL, "DATABASE_URL": "other"}, URL),
        (None, {"DATABASE_URL": URL, "PGHOST": "other"}, URL),
        ("", {"TURNKEEP_DATABASE_URL": "", "PGHOST": "db"}, ""),
        ("embedded", {}, "embedded"),
    ],
)
def test_the_first_name_counts(argument: str | None, environ: dict[str, str], named: str) -> None:
    assert settings.database(argument, environ) == named


def test_nothing_is_guessed() -> None:
    with pytest.raises(turnkeep.ConfigurationError, match="TURNKEEP_DATABASE_URL"):
        settings.database(None, {"PGPASSWORD": "x"})


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql+asyncpg://boss:s3cret@127.0.0.1/app",
        "mysql://boss:s3cret@127.0.0.1/app",
        "postgresql://boss:s3cret word@127.0.0.1/app",
        "postgresql://boss:s3cret@[bad/app",
        "host=x password=s3cret nonsense",
    ],
)
async def test_a_dsn_that_cannot_be_read_is_refused_without_quoting_its_password(dsn: str) -> None:
    import traceback

    with pytest.raises(turnkeep.ConfigurationError, match="postgresql://") as raised:
        await turnkeep.open(dsn).open()
    with pytest.raises(turnkeep.ConfigurationError) as by_migrate:
        status(dsn)
    for error in (raised.value, by_migrate.value):
        assert "s3cret" not in "".join(traceback.format_exception(error, chain=True)).replace(dsn, "")
        assert "s3cret" not in str(error)
    assert ("leave out '+asyncpg'" in str(raised.value)) == ("+asyncpg" in dsn)
