"""A program for threads that is sent SIGINT while it saves, over and over, and tells what it came to as JSON.

`python interrupted.py DSN saves|transactions ROUNDS`: ROUNDS messages, each saved until it stands.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import uuid
from contextlib import suppress
from types import FrameType
from typing import Any

import turnkeep

POOL_SIZE = 2


class Interruptible:
    """SIGINT raises inside the block, and nowhere else."""

    inside = False
    count = 0

    def __enter__(self) -> None:
        self.inside = True

    def __exit__(self, *error: object) -> None:
        self.inside = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.inside:
            self.inside = False
            self.count += 1
            raise KeyboardInterrupt


def saves(branch: turnkeep.Branch, interruptible: Interruptible, rounds: int) -> None:
    """Save under a write_id, again where it was interrupted."""
    for number in range(rounds):
        write_id, saved = uuid.uuid4(), None
        while saved is None:
            with suppress(KeyboardInterrupt), interruptible:
                saved = branch.save([{"n": number}], write_id=write_id)


def transactions(branch: turnkeep.Branch, interruptible: Interruptible, rounds: int) -> None:
    """Save together with an effect, again where the branch does not show it."""
    number = 0
    while number < rounds:
        with suppress(KeyboardInterrupt), interruptible, branch.transaction() as transaction:
            transaction.connection.execute("INSERT INTO public.ledger VALUES (%s)", (number,))
            transaction.save([{"n": number}])
        branch.refresh()
        number = sum("n" in message for message in branch.messages)


def connections_left(store: turnkeep.Store) -> int:
    """How many calls the pool has connections for at once."""
    try:
        with store.conversation("other").transaction():
            store.restore("other")  # needs the other one
    except turnkeep.PoolExhaustedError:
        return 0
    return POOL_SIZE


def main() -> None:
    """Do it, and print what is known at the end."""
    dsn, what, rounds = sys.argv[1:]
    interruptible = Interruptible()
    signal.signal(signal.SIGINT, interruptible.interrupt)
    with turnkeep.open_sync(dsn, pool_size=POOL_SIZE, timeout=60) as store:
        branch = store.conversation("c")
        branch.begin_turn({"role": "user"})
        print("ready", flush=True)
        {"saves": saves, "transactions": transactions}[what](branch, interruptible, int(rounds))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        told: dict[str, Any] = {
            "interrupts": interruptible.count,
            "handle": [message.get("n") for message in branch.messages],
            "connections": connections_left(store),
            "helpers": sum(thread.name == "turnkeep-helper" for thread in threading.enumerate()),
        }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
