"""A process that writes scripted conversations through the store, and is killed at a chosen statement.

Run as a program it is a nursery: it has imported everything and connected to nothing, forks a writer for
each job that it reads, and says how that ended. A writer reports on stdout what it is about to do, what
was acknowledged, and every statement it sends. Statements are seen from outside the store, by replacing
the driver's `execute`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

import psycopg

import turnkeep

Step = tuple[str, dict[str, Any]]


def _call(name: str) -> dict[str, Any]:
    return {"id": f"call_{name}", "function": {"name": name, "arguments": '{"city": "Köln"}'}}


def _asked(*names: str) -> Step:
    calls = [_call(name) for name in names]
    message = {"role": "assistant", "content": None, "metadata": {"tool_calls": calls}}
    return "save", {"messages": [message], "tool_calls": calls, "state": {"waits_for": list(names)}}


def _result(name: str) -> Step:
    result = {"tool_call_id": f"call_{name}", "content": f"{name} says 7 °C"}
    return "save", {"messages": [{"role": "tool", **result}], "tool_results": [result]}


def _input(text: str, key: str | None = None) -> Step:
    return "begin", {"message": {"role": "user", "content": text}, "key": key}


def _answer(text: str) -> Step:
    return "save", {"messages": [{"role": "assistant", "content": text}], "state": {"said": text}, "final": True}


SCRIPTS: dict[str, list[Step]] = {
    "no tool": [_input("hello"), _answer("hi"), _input("and now?"), _answer("bye")],
    "one tool": [_input("weather?"), _asked("weather"), _result("weather"), _answer("7 °C")],
    "three tools out of order": [
        _input("all of it"),
        _asked("weather", "news", "stocks"),
        _result("stocks"),
        _result("weather"),
        _result("news"),
        _answer("done"),
    ],
    "fork in the middle of a turn": [
        _input("try it two ways"),
        _asked("weather"),
        ("fork", {"at": (0, 1)}),
        _result("weather"),
        _answer("the other way"),
        ("switch", {"branch": 0}),
        _result("weather"),
        _answer("this way"),
    ],
    "keyed turns": [_input("once", key="m-1"), _answer("yes"), _input("twice", key="m-2"), _answer("no")],
    "under a lease": [
        ("claim", {}),
        _input("work"),
        ("renew", {}),
        _asked("weather"),
        _result("weather"),
        ("renew", {}),
        _answer("worked"),
        ("release", {}),
    ],
}


def say(**event: object) -> None:
    """Tell the parent. What is in the pipe outlives this process."""
    os.write(1, json.dumps(event).encode() + b"\n")


def hear() -> None:
    """Wait for the parent's word to go on."""
    while os.read(0, 1) != b"\n":
        pass


def die() -> None:
    """End as a power switch would end it."""
    os.kill(os.getpid(), signal.SIGKILL)


def statement_name(text: str) -> str:
    """What a statement does, told by its text."""
    function = re.search(r"(\w+)_v1\(", text)
    return function.group(1) if function else "restore" if ".branch AS b" in text else "look"


def watch_statements(kill_at: int, moment: str, name: Callable[[str], str] = statement_name) -> Any:
    """Number every statement from 1, and kill this process `before`, `after` or `during` one of them."""
    execute = psycopg.AsyncCursor.execute
    sent = 0

    async def watched(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        text = query.decode() if isinstance(query, bytes) else str(query)
        say(statement=sent, name=name(text))
        if sent == kill_at and moment == "before":
            die()
        if sent == kill_at and moment.startswith("during"):
            say(at=sent)
            hear()
        result = await execute(cursor, query, *arguments, **options)
        if sent == kill_at and moment == "after":
            die()
        return result

    return mock.patch.object(psycopg.AsyncCursor, "execute", watched)


class Writer:
    """One life of a writer: it goes through the script from where the ledger says."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.script = SCRIPTS[job["script"]]
        self.conversation = uuid.UUID(job["conversation"])

    async def run(self) -> None:
        """Restore, and do what is left of the script."""
        async with turnkeep.open(self.job["dsn"], pool_size=1) as self.store:
            self.handle = await self._open(self.job["branch"])
            if self._leased(self.job["next"]):
                await self._claim()
            for number in range(self.job["next"], len(self.script)):
                again = self.job["intent"] if number == self.job["next"] else None
                await self._step(number, again or str(uuid.uuid4()))
        say(done=True)

    async def _step(self, number: int, write_id: str) -> None:
        say(intent=number, write_id=write_id)
        if self.job["acknowledge_early"]:
            say(acknowledged=number, write_id=write_id, place=None, branch=self.handle.branch)
        kind, arguments = self.script[number]
        place = await self._perform(kind, dict(arguments), uuid.UUID(write_id))
        say(acknowledged=number, write_id=write_id, place=place, branch=self.handle.branch)

    async def _perform(self, kind: str, arguments: dict[str, Any], write_id: uuid.UUID) -> list[int] | None:
        match kind:
            case "begin":
                given = None if arguments["key"] else write_id
                saved = await self.handle.begin_turn(arguments["message"], key=arguments["key"], write_id=given)
                return [saved.branch, saved.turn_index, saved.sub_step]
            case "save":
                saved = await self.handle.save(**arguments, write_id=write_id)
                return [saved.branch, saved.turn_index, saved.sub_step]
            case "fork":
                self.handle = await self.store.fork(self.conversation, **arguments, fork_id=write_id)
            case "switch":
                self.handle = await self._open(arguments["branch"])
            case "claim":
                await self._claim()
            case "renew":
                await self.handle.renew()
            case "release":
                assert await self.handle.release()
        return None

    async def _open(self, branch: int | None) -> turnkeep.AsyncBranch:
        return await self.store.conversation(self.conversation, agent_id="writer", branch=branch)

    async def _claim(self) -> None:
        while True:
            try:
                await self.handle.claim(owner=f"writer {os.getpid()}", seconds=3600)
                return
            except turnkeep.LeaseHeldError:
                say(lease_held=True)  # by a dead process: the parent lets it expire
                hear()

    def _leased(self, number: int) -> bool:
        """Whether the script holds a lease before that step."""
        kinds = [kind for kind, _ in self.script[:number]]
        return kinds.count("claim") > kinds.count("release")


def live(job: dict[str, Any]) -> None:
    """Be a writer, and end without ever coming back to the nursery."""
    status = 1
    try:
        with watch_statements(job["kill_at"], job["moment"]):
            asyncio.run(Writer(job).run())
        status = 0
    except BaseException as error:  # noqa: BLE001 - reported, and the process ends here
        say(error=f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def main() -> None:
    """Fork a writer for each job, and report its end, until the parent has no more."""
    jobs = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - unbuffered: writers read here too
    while line := jobs.readline():
        if not line.strip():
            continue
        if not (pid := os.fork()):
            live(json.loads(line))
        say(pid=pid)
        _, status = os.waitpid(pid, 0)
        say(exit=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
