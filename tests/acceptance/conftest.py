"""Directories and users of the embedded Postgres, for the tests of its life cycle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.embedded_users import User, passable, stopped_at_end, using


@pytest.fixture(scope="module")
def above() -> Iterator[Path]:
    """A directory that every user of the machine may pass."""
    with passable() as path:
        yield path


@pytest.fixture(params=["used"])
def place(above: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory that was used before, stopped, or a new one."""
    with stopped_at_end(above / request.param) as directory:
        yield directory
    if request.param == "new":
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def users(place: Path) -> Iterator[Callable[[], User]]:
    """Make a process that uses the directory."""
    with using(place) as make:
        yield make
