"""Leases taken and handed back, of branches that nobody needs to hold a handle of."""

from __future__ import annotations

import os
import secrets
import socket
import uuid

from turnkeep.model import Lease, check_text
from turnkeep.store import _arguments
from turnkeep.store._async_database import AsyncDatabase

_MAX_OWNER_CHARACTERS = 200


def lease_terms(owner: str | None, seconds: float) -> tuple[str, float]:
    """Check what a lease is asked for with; the owner is by default host and process id."""
    name = f"{socket.gethostname()}:{os.getpid()}" if owner is None else owner
    return check_text(name, "owner", _MAX_OWNER_CHARACTERS), _arguments.lease_seconds(seconds)


async def take_lease(
    database: AsyncDatabase, conversation_id: uuid.UUID, branch: int, owner: str, seconds: float, *, waiting: bool
) -> Lease | str:
    """Take a lease under a new token, or say what stands in the way."""
    token = secrets.randbits(62) + 1
    ((outcome, until, held_by),) = await database.fetch(
        "claim",
        {
            "conversation": conversation_id,
            "branch": branch,
            "owner": owner,
            "token": token,
            "lease_seconds": seconds,
            "waiting": waiting,
        },
    )
    if outcome == "claimed":
        return Lease(owner, token, seconds, until)
    return f"{held_by} holds a lease until {until:%H:%M:%S.%f %Z}" if outcome == "lease_held" else str(outcome)


async def release_lease(
    database: AsyncDatabase,
    conversation_id: uuid.UUID,
    branch: int,
    lease: Lease,
    *,
    delay: float = 0.0,
    stopped: str | None = None,
    failure: str | None = None,
) -> bool:
    """Hand a lease back, for later or because the branch has stopped. False if it was lost."""
    ((released,),) = await database.fetch(
        "release",
        {
            "conversation": conversation_id,
            "branch": branch,
            "token": lease.token,
            "delay": delay,
            "stopped": stopped,
            "failure": failure,
        },
    )
    return bool(released)
