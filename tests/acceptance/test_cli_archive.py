"""`turnkeep archive`, `unarchive`, `export` and `import`: what people type, what they see, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN, lines, run
from tests.observing import Observer, branches_held
from tests.store.whole_rows import rich, rows
from turnkeep.search import Search
from turnkeep.store._documents import read_lag


@pytest.fixture
async def three(store: turnkeep.AsyncStore) -> None:
    """Two that have ended, and one that goes on."""
    await rich(store, "one", ended=True)
    await rich(store, "two", ended=True)
    await rich(store, "three")


def plain(text: str) -> str:
    """What is shown, without when it was archived and how long ago things were."""
    text = re.sub(r"\n  archived .*|\d+ (s|min) ago|\"archived_at\": (null|\"[^\"]*\")", "", text)
    return re.sub(r"[ ─]+", " ", text)


def started(*arguments: str, dsn: str) -> subprocess.Popen[bytes]:
    """The command, running."""
    environment = {**PLAIN, "TURNKEEP_DATABASE_URL": dsn}
    return subprocess.Popen([COMMAND, *arguments], env=environment, stderr=subprocess.PIPE)


def piped(command: str, dsn: str) -> bytes:
    """What a line of shell prints."""
    environment = {**PLAIN, "TURNKEEP_DATABASE_URL": dsn}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, timeout=PATIENCE, check=True)
    return done.stdout


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("damage", ["UPDATE turnkeep.archive SET payload = 'x'", "DELETE FROM turnkeep.archive"])
async def test_an_export_goes_on_without_what_is_damaged(
    dsn: str, store: turnkeep.AsyncStore, tmp_path: Path, damage: LiteralString
) -> None:
    one = await store.archive("one")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(damage)
    done = run("export", "--all", "--output", str(tmp_path / "x.jsonl"), dsn=dsn)
    assert done.code == 1
    assert f"the archive of conversation {one.conversation_id} is damaged or missing" in done.err
    again = run("import", str(tmp_path / "x.jsonl"), dsn=dsn)
    assert (again.code, "2 conversations there already" in again.out) == (0, True)


@pytest.mark.usefixtures("three")
async def test_what_has_ended_is_archived_shown_and_brought_back(dsn: str, store: turnkeep.AsyncStore) -> None:
    views = [(), ("--tree",), ("--history",), ("--json",), ("--context",), ("--raw",)]
    before = [run("show", "one", *view, dsn=dsn).out for view in views]
    would = run("archive", "--ended-before", "0d", "--dry-run", dsn=dsn)
    assert (would.code, len(would.out.splitlines())) == (0, 2)
    assert "2 conversations would be archived" in would.err
    done = run("archive", "--ended-before", "0d", dsn=dsn)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"Archived 2 conversations: [\d.]+ kB of rows, [\d.]+ kB in the archive\.\n", done.out)
    listed = lines(run("ls", "--archived", "--json", dsn=dsn))
    assert {one["external_id"] for one in listed} == {"one", "two"}
    assert [one["external_id"] for one in lines(run("ls", "--json", dsn=dsn))] == ["three"]
    table = run("ls", "--archived", dsn=dsn).out
    assert ("About one" in table, "unpacked" in table) == (True, True)
    for view, text in zip(views, before, strict=True):
        assert plain(run("show", "one", *view, dsn=dsn).out) == plain(text), view
    assert run("show", "one", "--raw", dsn=dsn).bytes.decode() == before[-1]
    assert json.loads(run("show", "one", "--json", dsn=dsn).out)["messages"] == json.loads(before[3])["messages"]
    refused = run("post", "one", "hello", "--key", "k", dsn=dsn)
    assert (refused.code, "turnkeep unarchive" in refused.err) == (5, True)
    assert run("diff", "one@0.0", "one", dsn=dsn).code == 5
    again = run("archive", "one", dsn=dsn)
    assert (again.code, "1 conversation was already archived" in again.err) == (0, True)
    back = run("unarchive", "one", "two", dsn=dsn)
    assert re.fullmatch(r"Unarchived 2 conversations: [\d.]+ kB of rows, [\d.]+ kB of archive before\.\n", back.out)
    assert run("show", "one", "--raw", dsn=dsn).out == before[-1]


@pytest.mark.usefixtures("three")
async def test_an_archived_conversation_is_found_by_its_words(dsn: str) -> None:
    assert run("archive", "one", dsn=dsn).code == 0
    found = lines(run("search", "again", "--json", dsn=dsn))
    assert "one" in json.dumps(found)


@pytest.mark.usefixtures("three")
async def test_what_is_asked_wrongly_is_said(dsn: str, store: turnkeep.AsyncStore) -> None:
    branch = await store.conversation("three")
    await branch.begin_turn({"role": "user"})
    for arguments, code in (
        (("archive",), 2),
        (("archive", "one", "--ended-before", "1d"), 2),
        (("archive", "--ended-before", "soon"), 2),
        (("archive", "nobody"), 3),
        (("archive", "three"), 5),
        (("unarchive",), 2),
        (("export",), 2),
        (("export", "one", "--all"), 2),
        (("export", "--all", "--output", "/nowhere/x"), 2),
        (("import", "/nowhere/x"), 2),
        (("ls", "--archived", "--interrupted"), 2),
    ):
        ran = run(*arguments, dsn=dsn)
        assert (ran.code, ran.out) == (code, ""), arguments
    several = run("archive", "three", "two", dsn=dsn)
    assert (several.code, "a turn is open" in several.err) == (5, True)
    assert (await store.describe("two")).archived_at is not None


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2"])
async def test_a_file_holds_everything_whatever_it_is_packed_with(
    dsn: str, store: turnkeep.AsyncStore, tmp_path: Path, ending: str
) -> None:
    whole = tmp_path / f"all.jsonl{ending}"
    file = str(whole)
    before = rows(dsn)
    exported = run("export", "--all", "--output", file, "--json", dsn=dsn)
    assert json.loads(exported.out)["conversations"] == 3
    assert os.listdir(tmp_path) == [f"all.jsonl{ending}"]
    assert "3 conversations there already" in run("import", file, dsn=dsn).out
    for name in ("one", "two", "three"):
        await store.erase(name)
    done = run("import", file, dsn=dsn)
    assert (done.code, done.out.startswith("Imported 3 conversations")) == (0, True)
    assert rows(dsn) == before
    await store.update("one", title="another")
    conflict = run("import", file, dsn=dsn)
    assert (conflict.code, "'one'" in conflict.err) == (5, True)
    assert run("import", file, "--as-copy", dsn=dsn).code == 0
    cut = tmp_path / f"cut{ending}"
    cut.write_bytes(whole.read_bytes()[:-60])
    damaged = run("import", str(cut), dsn=dsn)
    assert (damaged.code, re.search(r"line \d+ \(byte \d+\)", damaged.err) is not None) == (1, True)


@pytest.mark.usefixtures("three")
async def test_an_export_goes_through_a_pipe(dsn: str) -> None:
    for output in ("", "-o /dev/stdout"):
        done = piped(f"{COMMAND} export one two {output} | {COMMAND} import - --json", dsn)
        assert json.loads(done)["there"] == 2


@pytest.mark.usefixtures("three")
async def test_a_pipe_or_a_link_is_written_to_and_never_replaced(dsn: str, tmp_path: Path) -> None:
    pipe, link, real = tmp_path / "pipe", tmp_path / "link.jsonl", tmp_path / "real.jsonl"
    os.mkfifo(pipe)
    link.symlink_to(real)
    done = piped(f"{COMMAND} export one --output {pipe} & cat {pipe}; wait", dsn)
    assert done.splitlines()[-1] == b'{"kind":"file","conversations":1}'
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert run("export", "one", "--output", str(link), dsn=dsn).code == 0
    assert link.is_symlink()
    assert len(real.read_bytes().splitlines()) == len(done.splitlines())


@pytest.mark.parametrize("ending", [".zst", ".zip", ".ZIP", ".tgz"])
def test_what_is_not_written_is_refused_before_anything(dsn: str, tmp_path: Path, ending: str) -> None:
    refused = run("export", "--all", "--output", str(tmp_path / f"x{ending}"), dsn=dsn)
    assert (refused.code, ".gz, .xz or .bz2" in refused.err, os.listdir(tmp_path)) == (2, True, [])


@pytest.mark.usefixtures("three")
async def test_a_failed_export_leaves_the_file_that_was_there(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("before")
    assert run("export", "nobody", "--output", str(file), dsn=dsn).code == 3
    assert file.read_text() == "before"
    assert os.listdir(tmp_path) == ["x.jsonl"]


@pytest.mark.usefixtures("three")
async def test_ctrl_c_leaves_each_conversation_whole(dsn: str, store: turnkeep.AsyncStore, observer: Observer) -> None:
    two = (await store.describe("two")).conversation_id
    with branches_held(dsn, two):
        process = started("archive", "one", "two", dsn=dsn)
        await observer.see_waiting(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, error
    assert b"Traceback" not in error
    assert [one.external_id for one in await store.archived()] == ["one"]
    assert (await store.describe("two")).archived_at is None
    assert run("archive", "one", "two", dsn=dsn).code == 0


def test_chats_of_others_are_imported(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    chat = {"id": "7", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}
    file.write_text(json.dumps(chat) + "\n")
    for expected in (1, 0):
        done = lines(run("import", str(file), "--from", "openai-chat", "--json", dsn=dsn))
        assert done[0]["conversations"] == expected
    assert "yes" in run("show", "openai-chat:7", dsn=dsn).out
    missing = run("import", dsn, "--from", "langgraph", dsn=dsn)
    assert (missing.code, "--source-schema" in missing.err) == (3, True)


@pytest.mark.usefixtures("three")
async def test_what_an_embedder_has_left_is_read_before_it_is_archived(dsn: str, observer: Observer) -> None:
    observer.rows(
        "UPDATE turnkeep.document SET claim = gen_random_uuid(), next_try_at = turnkeep.clock() + interval '60 s'"
        " RETURNING 1"
    )
    done = run("archive", "one", dsn=dsn)
    assert (done.code, done.err) == (0, "")
    assert "one" in json.dumps(lines(run("search", "again", "--json", dsn=dsn)))


@pytest.mark.usefixtures("three")
async def test_what_could_not_be_read_before_it_was_archived_is_said(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    observer.rows(
        "UPDATE turnkeep.document SET tries = 7, claim = gen_random_uuid(),"
        " next_try_at = turnkeep.clock() + interval '60 s' RETURNING 1"
    )
    assert "could not be read for a search" in run("archive", "one", dsn=dsn).err
    observer.rows(
        "UPDATE turnkeep.document SET tries = 1, error = 'why', claim = NULL, next_try_at = turnkeep.clock()"
        " WHERE text IS NULL RETURNING 1"
    )
    archiving = await store.archive("two")
    missing = (await Search(store).search("again", conversation="two")).not_indexed
    assert missing.text > 0
    assert missing.dead == 0
    assert (await read_lag(store)).archived >= missing.text
    await store.unarchive(archiving.conversation_id)
    assert (await Search(store).search("again", conversation="two")).hits
