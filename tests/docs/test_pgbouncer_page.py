"""The configuration that the page about pgbouncer begins with is one that pgbouncer takes and Turnkeep works with."""

from __future__ import annotations

import re
from configparser import ConfigParser

import turnkeep
from tests.acceptance.pgbouncer import PgBouncer
from tests.docs.test_snippets import ROOT

PAGE = (ROOT / "docs" / "how-to" / "pgbouncer.md").read_text()
# Where the test's own pgbouncer listens, and that it asks nobody for a password.
OUR_OWN = {"listen_addr", "listen_port", "auth_type", "auth_file"}


async def test_the_configuration_of_the_page_works(dsn: str) -> None:
    found = re.search(r"^```ini\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    parser = ConfigParser()
    parser.read_string(found[1])
    settings = {name: value for name, value in parser["pgbouncer"].items() if name not in OUR_OWN}
    assert settings["pool_mode"] == "transaction"
    with PgBouncer(dsn, pool_size=1, settings=settings) as bouncer:
        async with turnkeep.open(bouncer.dsn()) as store:
            assert store.pooled
            branch = await store.conversation("c")
            await branch.begin_turn({"role": "user", "content": "hello"})
            async with branch.transaction() as transaction:
                await transaction.save([{"role": "assistant", "content": "hello"}], final=True)
            assert len((await store.restore("c")).messages) == 2
