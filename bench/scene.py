"""What the measures share: databases, the floor, the conversation, and how samples become a ratio."""

from __future__ import annotations

import json
import random
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep

TURNS = 50
STEPS = 4
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"

FLOOR_TABLE = (
    "CREATE TABLE floor "
    "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, conversation uuid NOT NULL, body json NOT NULL)"
)
FLOOR_INSERT = "INSERT INTO floor (conversation, body) VALUES (%s, %s)"

Step = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Finding:
    """One line of the table: a ratio, what it is measured against, and its budget."""

    what: str
    ratio: float
    budget: float | None
    at_least: bool
    detail: str

    @property
    def met(self) -> bool | None:
        """Whether the budget is met; None where there is none."""
        if self.budget is None:
            return None
        return self.ratio >= self.budget if self.at_least else self.ratio <= self.budget


def message(words: int, seed: int) -> dict[str, Any]:
    """A chat message of eleven bytes a word, which Postgres can't compress: what is stored is what was sent."""
    rng = random.Random(seed)
    text = " ".join("".join(rng.choices(LETTERS, k=10)) for _ in range(words))
    return {"role": "assistant", "content": text, "metadata": {"timestamp": "2026-11-29T12:00:00Z", "seed": seed}}


def conversation(seed: int) -> list[list[dict[str, Any]]]:
    """Fifty turns of four messages each, about 500 KB of JSON."""
    return [[message(220, seed * 1000 + turn * STEPS + step) for step in range(STEPS)] for turn in range(TURNS)]


def raw_bytes(turns: Sequence[Sequence[dict[str, Any]]]) -> int:
    """What the messages take as JSON text."""
    return sum(len(json.dumps(m, ensure_ascii=False, separators=(",", ":")).encode()) for turn in turns for m in turn)


async def replay(branch: turnkeep.AsyncBranch, turns: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Write a conversation as an agent does: the input, then a checkpoint for every message."""
    for number, turn in enumerate(turns):
        await branch.begin_turn(turn[0], state={"step_count": number})
        for step, one in enumerate(turn[1:], start=2):
            await branch.save([one], state={"step_count": step}, final=step == len(turn))


def new_database(server: str) -> str:
    """A migrated database with the floor's table; its conninfo."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    conninfo = make_conninfo(server, dbname=name)
    turnkeep.migrate(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(FLOOR_TABLE)
    return conninfo


async def interleaved(steps: Sequence[Step], rounds: int, warm_up: int) -> list[list[float]]:
    """Time the steps in turn, round after round: what disturbs one disturbs all. Seconds for each step."""
    samples: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + warm_up):
        for index, step in enumerate(steps):
            start = time.perf_counter()
            await step()
            if number >= warm_up:
                samples[index].append(time.perf_counter() - start)
    return samples


def ratio(samples: Sequence[float], against: Sequence[float], pieces: int = 5) -> tuple[float, str]:
    """The median of the ratios of medians over consecutive pieces, with the spread and both medians in words."""
    size = max(1, len(samples) // pieces)
    cuts = range(0, size * pieces, size)
    ratios = [statistics.median(samples[i : i + size]) / statistics.median(against[i : i + size]) for i in cuts]
    spread = f"{min(ratios):.2f}–{max(ratios):.2f} over {pieces} pieces"
    return statistics.median(ratios), f"{milliseconds(samples)} against {milliseconds(against)}; {spread}"


def milliseconds(samples: Sequence[float]) -> str:
    """The median as people read it."""
    return f"{statistics.median(samples) * 1000:.2f} ms"


def sizes(connection: psycopg.Connection[Any], schema: str) -> int:
    """The bytes of a schema's tables with their indexes and out-of-line values."""
    row = connection.execute(
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'",
        (schema,),
    ).fetchone()
    assert row is not None
    return int(row[0])
