"""Every command and option says in a sentence what it does, and the page about the command line tells the truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from turnkeep.cli.app import app
from turnkeep.cli.failures import EXPLAINED

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md"
TOP: Any = typer.main.get_command(app)


def commands(group: Any, path: str = "turnkeep") -> Iterator[Any]:
    yield pytest.param(group, id=path)
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize("command", list(commands(TOP)))
def test_a_command_and_its_options_say_what_they_do(command: Any) -> None:
    first = command.help.split("\n\n")[0].replace("\n", " ")
    assert re.fullmatch(r"[A-Z].{8,119}\.", first), first
    for parameter in command.params:
        if parameter.name in ("install_completion", "show_completion", "help"):
            continue
        assert re.fullmatch(r"\S.{8,219}\.", parameter.help or ""), f"{parameter.name}: {parameter.help}"


def test_the_page_has_every_exit_code_and_what_it_means() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    assert {int(code): words.replace("`", "") for code, words in rows.items()} == {
        int(code): words for code, words in EXPLAINED.items()
    }


def test_completion_is_named_as_the_command_has_it() -> None:
    options = {name for parameter in TOP.params for name in parameter.opts}
    assert {"--install-completion", "--show-completion"} <= options
    assert all(
        f"`{name}`" in PAGE.read_text() or f"{name}`" in PAGE.read_text() for name in options if "completion" in name
    )
