"""A store on the embedded Postgres goes on when every process of it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

import turnkeep
from tests.acceptance.embedded_users import kill_keepers, until
from turnkeep.embedded import EmbeddedPostgres, status

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def embedded(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNKEEP_EMBEDDED_DIR", str(place))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("TURNKEEP_DATABASE_URL", "embedded")
    return place


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_the_word_embedded_is_all_it_takes(embedded: Path) -> None:
    async with turnkeep.open() as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        assert (await store.restore("c")).messages == [USER]
    until(lambda: not status(embedded).running, "the server is gone with its last user")


async def test_saves_go_on_when_server_and_keepers_are_killed(embedded: Path) -> None:
    async with turnkeep.open() as store:
        branch = await store.conversation("killed")
        await branch.begin_turn(USER)
        for number in range(3):
            postmaster = status(embedded).postmaster_pid
            assert postmaster is not None
            kill_keepers(embedded, postmaster, *children(postmaster))
            await branch.save([{"role": "assistant", "content": number}])
            assert status(embedded).postmaster_pid not in (None, postmaster)
        assert [m["content"] for m in (await store.restore("killed")).messages] == ["hello", 0, 1, 2]


async def test_a_store_outlives_other_users_of_its_server(embedded: Path) -> None:
    other = EmbeddedPostgres.start(embedded)
    async with turnkeep.open() as store:
        other.release()
        await (await store.conversation("others")).begin_turn(USER)


async def test_a_slip_of_the_pen_makes_no_schema(embedded: Path) -> None:
    async with turnkeep.open() as store:
        with pytest.raises(turnkeep.SchemaError, match="no schema 'turnkep'; there are: 'turnkeep'"):
            await turnkeep.open(schema="turnkep").open()
        turnkeep.migrate(store.conninfo, "meant")
        async with turnkeep.open(schema="meant") as other:
            await other.conversation("c")
        with pytest.raises(turnkeep.SchemaError, match="'meant', 'turnkeep'"):
            await turnkeep.open(schema="turnkep").open()
