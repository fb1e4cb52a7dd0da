"""The agent that the engines answer for. Its tool says on disk that it runs, then waits for the file OPEN."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import turnkeep


@turnkeep.tool
def get_weather(ctx: turnkeep.ToolContext, city: str) -> str:
    """The weather in a city."""
    with Path(os.environ["WORLD"]).open("a") as world:
        world.write(f"{ctx.idempotency_key} {city}\n")
    while not Path(os.environ["OPEN"]).exists():
        time.sleep(0.01)
    return f"Sunny in {city}."


agent = turnkeep.Agent(
    "engine",
    model=os.environ["MODEL"],
    base_url=os.environ["MODEL_URL"],
    tools=[get_weather] if os.environ["TOOLS"] else [],
    options=json.loads(os.environ["OPTIONS"]),
)
