"""The page about the command line, as typer itself documents a command, with the common options told once."""

from __future__ import annotations

import re
import subprocess
import sys

from tools.reference.markdown import anchor, page

_INTRODUCTION = """\
`turnkeep COMMAND --help` says the same. Every command takes [the common options](#turnkeep), before or after its
name; those of `embedded` and `demo` work on a private Postgres, and take none that names another. Data goes to
stdout, notes and errors to stderr. A conversation is named by its own id, by a UUID or its first 8 or more digits,
or by `@last`; a branch by `:BRANCH` behind that, its number or its name; a checkpoint by `@TURN.SUB_STEP`, which comes
last: `ticket-42:retry@0.1`."""

_OPTION = re.compile(r"^\* `-.*\n", re.MULTILINE)
# What typer writes at every command and nobody looks for: the section without any option left.
_EMPTY = re.compile(r"^\*\*Options\*\*:\n\n(?!\* )", re.MULTILINE)
_HEADING = re.compile(r"^##+ `(.*)`\n\n(.*)", re.MULTILINE)
_COMMAND = re.compile(r"^\* `(\w+)`: .*$", re.MULTILINE)  # cut off where it is long


def text() -> str:
    """The page."""
    root, *commands = re.split(r"^(?=##+ `)", _typers(), flags=re.MULTILINE)
    common = set(_OPTION.findall(root))
    sections = [root.replace("# `turnkeep`", "## `turnkeep`", 1)]
    sections += [_without(common, one) for one in commands]
    first_lines = {found[1]: found[2] for one in sections if (found := _HEADING.match(one))}
    return page("The command line", _INTRODUCTION, *(_listed(one, first_lines) for one in sections))


def _without(common: set[str], section: str) -> str:
    """A section without the options that every command has."""
    return _EMPTY.sub("", _OPTION.sub(lambda line: "" if line[0] in common else line[0], section))


def _listed(section: str, first_lines: dict[str, str]) -> str:
    """A section whose commands are told about by their whole first lines, and linked."""
    heading = _HEADING.match(section)
    if heading is None:
        return section

    def line(command: re.Match[str]) -> str:
        name = f"{heading[1]} {command[1]}"
        return f"* [`{name}`](#{anchor(name)}): {first_lines[name]}"

    return _COMMAND.sub(line, section)


def _typers() -> str:
    command = (sys.executable, "-m", "typer", "turnkeep.cli.app", "utils", "docs", "--name", "turnkeep")
    return subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout
