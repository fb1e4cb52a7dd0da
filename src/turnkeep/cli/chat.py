"""The terminal's side of a conversation, for `turnkeep run`: lines in, signals, how it ends."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from turnkeep.cli.chat_drive import StoppedError, Talk
from turnkeep.cli.chat_screen import Screen
from turnkeep.cli.database import opened
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options
from turnkeep.cli.post import print_reply
from turnkeep.errors import TurnFailedError
from turnkeep.model import Checkpoint
from turnkeep.runner import Agent
from turnkeep.store import AsyncStore

Result = TypeVar("Result")

_PROMPT = "> "
_CONNECTIONS = 4
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Chat:
    """A conversation with an agent, line by line. The event loop runs while a reply is made, not while one types."""

    def __init__(self, options: Options, agent: Agent, reference: str, *, lease: float, again: str) -> None:
        output = options.output
        self._options = options
        self._agent = agent
        self._reference = reference
        self._lease = lease
        self._again = again
        self._typing = sys.stdin is not None and sys.stdin.isatty() and output.terminal
        self._screen = Screen(output, streaming=output.terminal and not options.json)
        self._stack = AsyncExitStack()
        self._runner = asyncio.Runner()
        self._store: AsyncStore
        self._talk: Talk

    def __enter__(self) -> Self:
        logging.getLogger("turnkeep.runner").addHandler(logging.NullHandler())  # the screen tells it
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    def run(self) -> Exit:
        """Talk until there are no more lines."""
        checkpoint = self._runner.run(self._open())
        self._again += f" {shlex.quote(str(self._talk.conversation))}"
        try:
            self._greet(checkpoint)
            if checkpoint is not None and (checkpoint.turn_open or checkpoint.status not in ("idle", "ended")):
                self._take_turn(None)
            while (line := self._line()) is not None:
                if line.strip():
                    self._take_turn(line)
        except (StoppedError, KeyboardInterrupt):
            self._screen.note(
                "Stopped here; nothing is lost. A worker that serves this agent would go on with it.", "yellow"
            )
            self._tell_how_to_go_on()
            return Exit.INTERRUPTED
        except Exception:
            self._tell_how_to_go_on()
            raise
        if self._typing:
            self._tell_how_to_go_on()
        return Exit.OK

    async def _open(self) -> Checkpoint | None:
        self._store = await self._stack.enter_async_context(opened(self._options, pool_size=_CONNECTIONS))
        self._talk = Talk(self._store, self._agent, self._screen, lease=self._lease)
        self._stack.push_async_callback(self._talk.close)
        return await self._talk.open(self._reference)

    def _greet(self, checkpoint: Checkpoint | None) -> None:
        new = "new " if checkpoint is None else ""
        end = " Ctrl-D ends." if self._typing else ""
        self._screen.note(
            f"{self._agent.name} ({self._agent.model}), {new}conversation {self._talk.conversation}.{end}", "bold"
        )
        if checkpoint is None:
            return
        self._screen.before(checkpoint.message_texts)
        turn = f"turn {checkpoint.turn_index}"
        if checkpoint.status == "failed":
            self._screen.note(f"… {turn} had failed; trying again", "yellow")
        elif checkpoint.turn_open:
            self._screen.note(f"… {turn} was left open at step {checkpoint.sub_step}; going on with it", "yellow")

    def _take_turn(self, line: str | None) -> None:
        """Have a line answered, or what was left open. Whoever types may go on after a turn that has failed."""
        try:
            self._do(self._talk.go_on() if line is None else self._answer(line))
        except TurnFailedError as error:
            if not self._typing:
                raise
            self._screen.note(f"error: {error}: it is tried again before your next message.", "red")

    async def _answer(self, line: str) -> None:
        posted = await self._talk.say(line)
        if not self._screen.streaming:
            print_reply(self._options, posted, await self._store.wait_reply(posted.conversation_id, posted.key))
            sys.stdout.flush()

    def _do(self, action: Coroutine[Any, Any, Result]) -> Result:
        """Do something that signals stop in good order."""

        async def stoppable() -> Result:
            loop = asyncio.get_running_loop()
            for number in _STOPPING:
                loop.add_signal_handler(number, self._talk.stop)
            try:
                return await action
            finally:
                for number in _STOPPING:
                    loop.remove_signal_handler(number)

        return self._runner.run(stoppable())

    def _line(self) -> str | None:
        """The next line; None at the end."""
        if self._typing:
            with suppress(ImportError):
                import readline  # noqa: F401 - input() edits lines by it

            print()
            try:
                return input(_PROMPT)
            except EOFError:
                print()
                return None
        line = sys.stdin.readline() if sys.stdin is not None else ""
        return line.removesuffix("\n") if line else None

    def _tell_how_to_go_on(self) -> None:
        self._screen.note(f"Go on with: {self._again}", "dim")
