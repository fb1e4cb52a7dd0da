"""`turnkeep run`: a conversation in the terminal, that survives kill -9."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Annotated

import typer

from turnkeep.cli.agents import choose, load
from turnkeep.cli.completion import complete
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, RedactOption, check_seconds, command


@command
def run(
    options: Options,
    app: Annotated[
        str,
        typer.Argument(
            metavar="APP",
            help="The agent, as module:attribute; the current directory counts.",
            show_default=False,
        ),
    ],
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION",
            help="Any text, which is its id, or @last; a new conversation if not given.",
            show_default=False,
            autocompletion=complete,
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Which one, where APP has several.")
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", metavar="SECONDS", help="After a kill, going on takes up to this long.")
    ] = 15.0,
    redact: RedactOption = None,
) -> Exit:
    """Talk to an agent in the terminal, line by line.

    Everything is durable before it is done: after a kill or a crash the same command, with the conversation's id, goes
    on where it stood. Ctrl-C stops a reply, to be gone on with later; Ctrl-D ends. Lines that are piped in are answered
    one after the other, on stdout.
    """
    check_seconds("--lease", lease)
    chosen = choose(load([app]), agent, app)
    from turnkeep.cli.chat import Chat

    conversation = f"chat-{secrets.token_hex(3)}" if reference is None else reference
    options = replace(options, redact=redact)
    again = f"turnkeep run {app}" + ("" if redact is None else f" --redact {redact}")
    with Chat(options, chosen, conversation, lease=lease, again=again) as chat:
        return chat.run()
