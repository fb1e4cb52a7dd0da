"""A private Postgres for people without one.

`EmbeddedPostgres.start()` gives a process a real Postgres that it shares with every other process which
names the same directory. The server starts with its first user, outlives any of them, comes back when it
is killed, and goes with the last one. It listens on a private Unix socket only.
"""

from __future__ import annotations

from turnkeep.embedded._use import EmbeddedPostgres, EmbeddedStatus, status, stop

__all__ = ["EmbeddedPostgres", "EmbeddedStatus", "status", "stop"]
