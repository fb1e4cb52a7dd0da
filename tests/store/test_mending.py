"""What mends connections beside the calls looks again where something has broken since it looked."""

from __future__ import annotations

import asyncio
import threading

from turnkeep.store import _async_waiting, _sync_waiting


async def test_work_asked_for_while_it_is_done_is_done_again() -> None:
    background = _async_waiting.Background()
    began, go_on = asyncio.Semaphore(0), asyncio.Semaphore(0)
    done: list[int] = []

    async def work() -> None:
        done.append(len(done))
        began.release()
        await go_on.acquire()

    background.start(work)
    await began.acquire()
    for _ in range(3):
        background.start(work)
    go_on.release()
    await began.acquire()
    assert done == [0, 1]
    background.stop()


def test_work_asked_for_while_a_thread_does_it_is_done_again() -> None:
    background = _sync_waiting.Background()
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)
    done: list[int] = []

    def work() -> None:
        done.append(len(done))
        began.release()
        go_on.acquire()

    background.start(work)
    began.acquire()
    for _ in range(3):
        background.start(work)
    go_on.release()
    began.acquire()
    assert done == [0, 1]
    go_on.release()
