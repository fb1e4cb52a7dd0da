"""An agent with a tool of each policy. What they do in the world is on disk before they return."""

from __future__ import annotations

import asyncio
import os

import turnkeep

# In the world a tool has done something once its line is here: in one write, on disk.
WORLD = os.environ["WORLD"]


def do(line: str) -> None:
    """Have an effect outside the database."""
    file = os.open(WORLD, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.fsync(file)
    os.close(file)


@turnkeep.tool(idempotent=True)
async def look_up(ctx: turnkeep.ToolContext, query: str) -> str:
    """Look something up."""
    do(f"look_up {ctx.idempotency_key}")
    await asyncio.sleep(0)
    return f"found {query}"


@turnkeep.tool
async def send_mail(ctx: turnkeep.ToolContext, to: str) -> dict[str, str]:
    """Send a mail."""
    do(f"send_mail {ctx.idempotency_key}")
    return {"sent": to}


@turnkeep.tool(transactional=True)
async def refund(ctx: turnkeep.ToolContext, order: str, cents: int) -> str:
    """Pay money back."""
    await ctx.connection.execute("INSERT INTO public.refund (key, cents) VALUES (%s, %s)", (ctx.idempotency_key, cents))
    return f"{cents} cents for order {order}"


agent = turnkeep.Agent(
    "support",
    model="scripted",
    base_url=os.environ["MODEL_URL"],
    instructions="Help.",
    tools=[look_up, send_mail, refund],
)
