"""The worker that is killed: the agents of the twelve conversations and their tools, served as any worker does.

`python -m turnkeep.demo.app` takes its order, one line of JSON, from standard input, and ends when that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import turnkeep
from turnkeep.demo.script import load_scripts
from turnkeep.demo.tools import World, agents

LEASE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_POOL_SIZE = 30


async def serve(order: dict[str, Any]) -> None:
    """Work for ever, or with `drain` until nothing is left to do."""
    scripts = load_scripts()
    world = World(scripts, order["schema"], Path(order["outside"]), paced=order["paced"])
    async with turnkeep.open(order["database"], schema=order["schema"], pool_size=_POOL_SIZE) as store:
        worker = turnkeep.Worker(
            store,
            agents(scripts, world, order["base_url"]),
            lease_seconds=LEASE_SECONDS,
            poll_seconds=_POLL_SECONDS,
            owner=order["name"],
        )
        await worker.run(drain=order["drain"])


def _end_with_the_client() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Take the order, and serve."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_client, daemon=True).start()
    asyncio.run(serve(order))


if __name__ == "__main__":
    main()
