"""The process behind `WorkerProcesses`: reads orders, and forks a worker for each."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn, TextIO

import turnkeep
from turnkeep.runner import Agent, Driver, Worker
from turnkeep.runner.effects import Effect
from turnkeep.runner.loading import load_agents
from turnkeep.store import AsyncBranch
from turnkeep.testing.crash import CrashPoint

_POLL_SECONDS = 0.02


class CrashingWorker(Worker):
    """A worker that says which effects it begins, and dies at the crash point."""

    crash: CrashPoint | None = None
    out: TextIO = sys.stdout
    begun = 0

    def driver(self, branch: AsyncBranch, agent: Agent) -> Driver:
        """A driver that tells this worker about each effect."""
        return _CrashingDriver(self, super().driver(branch, agent))

    def at(self, number: int, when: str) -> None:
        """Die if this is the place."""
        if self.crash is not None and (self.crash.number, self.crash.when) == (number, when):
            os.kill(os.getpid(), signal.SIGKILL)


class _CrashingDriver(Driver):
    def __init__(self, worker: CrashingWorker, plain: Driver) -> None:
        super().__init__(plain.branch, plain.agent, plain.model)
        self._worker = worker

    async def perform(self, effect: Effect) -> Any:
        worker = self._worker
        worker.begun += 1
        number = worker.begun
        worker.out.write(json.dumps({"effect": type(effect).__name__}) + "\n")
        worker.out.flush()
        worker.at(number, "before")
        outcome = await super().perform(effect)
        worker.at(number, "after")
        return outcome


async def _work(agents: list[Agent], lease_seconds: float, order: dict[str, Any], out: TextIO) -> None:
    async with turnkeep.open(order["database"], schema=order["schema"]) as store:
        worker = CrashingWorker(store, agents, lease_seconds=lease_seconds, poll_seconds=_POLL_SECONDS)
        worker.out = out
        worker.crash = None if order["crash"] is None else CrashPoint(*order["crash"])
        await worker.run(drain=True)


def _be_worker(agents: list[Agent], lease_seconds: float, order: dict[str, Any], pipe: int) -> NoReturn:
    code = 1
    try:
        with open(pipe, "w") as out:
            try:
                asyncio.run(_work(agents, lease_seconds, order, out))
                code = 0
            except BaseException:
                out.write(json.dumps({"error": traceback.format_exc()}) + "\n")
                raise
    finally:
        os._exit(code)


def _run(agents: list[Agent], lease_seconds: float, order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_worker(agents, lease_seconds, order, writing)
    os.close(writing)
    with open(reading) as pipe:
        said = [json.loads(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(pid, 0)
    return {
        "ended": os.waitstatus_to_exitcode(status),
        "effects": [one["effect"] for one in said if "effect" in one],
        "error": next((one["error"] for one in said if "error" in one), None),
    }


def main() -> None:
    """Load the app, then serve orders until there are no more."""
    given = json.loads(sys.argv[1])
    agents = load_agents(given["app"])
    import openai  # noqa: F401 loaded once, for all the forks

    for line in sys.stdin:
        print(json.dumps(_run(agents, given["lease_seconds"], json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
