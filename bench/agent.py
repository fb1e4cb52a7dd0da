"""The agent of the measures; run as a program, a worker that serves it until it is killed."""

from __future__ import annotations

import asyncio
import os
import sys

import turnkeep

LEASE = 5.0
CONVERSATIONS = 500


@turnkeep.tool(idempotent=True)
async def look_up(query: str) -> str:
    """Look something up."""
    return f"found {query}"


agent = turnkeep.Agent(
    "bench", model="scripted", base_url=os.environ.get("MODEL_URL", "http://127.0.0.1:9/v1"), tools=[look_up]
)


async def main(database: str) -> None:
    """Serve the agent until the end of the process."""
    async with turnkeep.open(database, pool_size=20) as store:
        await turnkeep.Worker(store, [agent], concurrency=CONVERSATIONS, lease_seconds=LEASE).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
