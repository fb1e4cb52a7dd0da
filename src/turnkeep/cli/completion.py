"""The ids of conversations, completed by the shell: quickly, or not at all."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress

import typer

from turnkeep import settings
from turnkeep.cli.reference import LAST
from turnkeep.cli.text import cut, one_line

_SECONDS = 1.5
# What no shell takes apart or expands. A conversation whose own id has other characters is offered by its UUID.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]*")


def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Conversations whose id begins so, and what they are. Nothing where the database can't be asked at once."""
    found = [(LAST, "the conversation with the newest turn")] if LAST.startswith(incomplete) else []
    giving_up = threading.Timer(_SECONDS, os._exit, (0,))
    giving_up.daemon = True
    giving_up.start()
    with suppress(Exception):
        found += [
            (own if _PLAIN.fullmatch(own) and own.startswith(incomplete) else uuid, one_line(cut(about, 60, 1)[0]))
            for uuid, own, about in _asked(context, incomplete)
        ]
    giving_up.cancel()
    return [(text, about) for text, about in found if text.startswith(incomplete)]


def _asked(context: typer.Context, incomplete: str) -> list[tuple[str, str, str]]:
    from turnkeep.store._completion import ids_beginning

    given = {**context.find_root().params, **{k: v for k, v in context.params.items() if v is not None}}
    schema = given.get("schema") or settings.DEFAULT_SCHEMA
    named = settings.database(given.get("dsn"))
    if named != settings.EMBEDDED:
        return ids_beginning(named, schema, incomplete)
    from turnkeep import embedded

    if not embedded.status().running:  # which is not started for this
        return []
    with embedded.EmbeddedPostgres.start() as running:
        return ids_beginning(running.conninfo, schema, incomplete)
