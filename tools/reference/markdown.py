"""The few forms of Markdown that the pages are made of."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence

_LITERAL = re.compile(r"::\n\n((?:(?:    .*)?\n)*(?:    .*))", re.MULTILINE)
_NOTE = "<!-- written by `python -m tools.reference` from the code: change that, then run it again -->"


def page(title: str, *parts: str) -> str:
    """A page of these parts, which says that it is generated."""
    return "\n\n".join([f"# {title}", _NOTE, *(part.strip("\n") for part in parts if part)]) + "\n"


def code(text: str, language: str = "") -> str:
    """A block of code."""
    return f"```{language}\n{text}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def prose(docstring: str) -> str:
    """A docstring as Markdown: its blocks after a double colon become blocks of code."""
    text = _LITERAL.sub(lambda block: f":\n\n{code(textwrap.dedent(block[1]))}", inspect.cleandoc(docstring))
    return text.replace("``", "`") if "```" not in text else text


def anchor(heading: str) -> str:
    """The fragment under which a heading is found on its page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
