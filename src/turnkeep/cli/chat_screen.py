"""What a conversation in the terminal looks like: replies on stdout as they come, the rest beside them on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from turnkeep.cli.output import Output
from turnkeep.cli.post import reply_text
from turnkeep.cli.text import count, cut, one_line, printable
from turnkeep.cli.transcript import Message, Part, read_call, read_message

_SHOWN = 6  # of the messages before
_CHARACTERS, _LINES = 800, 12
_ARGUMENTS = 160
_MARKS = {"user": "> ", "system": "system: "}
_HALVES = ("\r", *map(chr, range(0xD800, 0xDC00)))  # what may be the first half of something


class Screen:
    """Prints a conversation.

    `streaming` says whether replies are printed as they come. `shown` is the number of the conversation's messages that
    have been shown, `typed` what the person has just said.
    """

    def __init__(self, output: Output, *, streaming: bool) -> None:
        self.streaming = streaming
        self.shown = 0
        self.typed: str | None = None
        self._output = output
        self._held = ""
        self._line_open = False
        self._begun = False
        self._waiting = False
        self._answering = False

    # -- a reply

    def ask(self) -> None:
        """A reply begins, or begins again."""
        self._held = ""
        self._begun = False

    def piece(self, text: str) -> None:
        """Print a piece of a reply."""
        self._waiting = False
        self._begun = True
        if self.streaming:
            text = _joined(self._held, text)
            self._held = text[-1:] if text.endswith(_HALVES) else ""
            self._write(text[: len(text) - len(self._held)])

    def lost(self, reason: str) -> None:
        """The model server gave no whole reply, and is asked again."""
        if self._begun:
            self.note(f"… the model server was lost ({one_line(reason)}); asking again", "yellow")
        elif not self._waiting:
            self.note(f"… waiting for the model server ({one_line(reason)})", "yellow")
        self._waiting = True

    def saved(self, messages: Sequence[str]) -> None:
        """Messages are stored: print what of them has not been printed as it came."""
        for text in messages:
            message = read_message(text)
            if message.role == "tool":
                self._result(message.parts)
            elif not self.streaming and not self._answering:
                self._message(message)
            elif self.streaming and not self._begun and (words := reply_text(text)):
                self._write(words)
            self._end_line()
            self._begun = False

    def _write(self, text: str) -> None:
        if text := printable(text):
            sys.stdout.write(text)
            sys.stdout.flush()
            self._line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._held:
            self._write(self._held)
            self._held = ""
        if self._line_open:
            print(flush=True)
            self._line_open = False

    # -- beside it

    def called(self, call: str) -> None:
        """A tool is run."""
        self._call(read_call(call))

    def note(self, text: str, style: str = "") -> None:
        """Print a line beside the conversation."""
        self._end_line()
        self._output.note(text, style)

    # -- what was said elsewhere

    def before(self, messages: Sequence[str]) -> None:
        """Print the last messages of a conversation, and say how many there are before them."""
        left_out = max(len(messages) - _SHOWN, 0)
        if left_out:
            self.note(f"({count(left_out, 'earlier message')})", "dim")
        self.shown = left_out
        self.others(messages)

    def others(self, messages: Sequence[str]) -> None:
        """Print what has come to these messages of the conversation without having been typed or made here."""
        for text in messages[self.shown :]:
            message = read_message(text)
            if message.role == "user" and self.typed is not None and self.typed == reply_text(text):
                self.typed = None
                self._answering = True
                continue
            self._answering = self._answering and message.role != "user"
            self._message(message)
        self.shown = len(messages)

    def _message(self, message: Message) -> None:
        for part in message.parts:
            if part.kind == "call":
                self._call(part)
            elif message.role == "tool":
                self._result([part])
            elif part.kind != "thought":
                kept, left = cut(part.text, _CHARACTERS, _LINES)
                mark = _MARKS.get(message.role, "")
                self.note(f"{mark}{kept}{f' … {left:,} more characters' if left else ''}")

    def _call(self, part: Part) -> None:
        self.note(_short(f"· {part.title} {part.text}"), "dim")

    def _result(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.note(_short(f"  → {part.text}"), "dim")


def _joined(held: str, text: str) -> str:
    """What was held back and the next piece; a character that was cut into two halves is whole again."""
    if held >= "\ud800":
        return (held + text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return held + text


def _short(text: str) -> str:
    kept, left = cut(text, _ARGUMENTS, 1)
    return one_line(kept.rstrip("\n")) + (" …" if left else "")
