"""The format of an export: what it refuses, with the place; nothing that is read is believed."""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep import transfer
from turnkeep.errors import TransferError
from turnkeep.transfer import Reader

MOMENT = "2026-11-30T12:00:00.000001+00:00"
Line = dict[str, Any]


def valid() -> list[Line]:
    """A conversation with two branches, as lines without its end."""
    one = str(uuid.UUID(int=1))
    branch = {"kind": "branch", "status": "idle", "attempts": 0, "turn_started_at": MOMENT, "updated_at": MOMENT}
    checkpoint = {"kind": "checkpoint", "created_at": MOMENT, "write_id": one, "branch": 0, "turn_index": 0}
    request = {"kind": "request", "digest": "00ff", "received_at": MOMENT, "taken_turn": 0}
    return [
        {
            "kind": "conversation", "format": 1, "release": "0.3.0", "exported_at": MOMENT, "conversation_id": one,
            "external_id": "a", "tags": [], "metadata": "{}", "version": 0, "update_ids": [], "current_branch": 0,
            "next_branch": 2, "created_at": MOMENT,
        },
        {"branch": 0, "turn_index": 0, "sub_step": 1, "next_position": 2, "lineage": [], **branch},
        {"branch": 1, "turn_index": 0, "sub_step": 0, "next_position": 0, "lineage": [0, 0, 0], **branch},
        {"kind": "message", "branch": 0, "position": 0, "body": '{"a":1}'},
        {"kind": "message", "branch": 0, "position": 1, "body": '{"b":\n1e400}'},
        {"sub_step": 0, "phase": "input", "spans": [0, 0, 1], **checkpoint},
        {"sub_step": 1, "phase": "final", "spans": [0, 0, 2], **checkpoint},
        {"key": "k", "number": 1, "branch": 0, **request},
    ]  # fmt: skip


def written(lines: list[Line], *, trailer: bool = True) -> bytes:
    """The lines with an end that fits, whatever they say."""
    body = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
    counts = {kind.name: sum(line.get("kind") == kind.name for line in lines[1:]) for kind in transfer.ROWS}
    end = {"kind": "end", **counts, "sha256": hashlib.sha256(body).hexdigest()}
    file = b'{"kind":"file","conversations":1}\n' if trailer else b""
    return body + json.dumps(end).encode() + b"\n" + file


def read(data: bytes) -> int:
    """Read all of it, and give the number of rows."""
    reader = Reader(io.BytesIO(data), "x.jsonl", datetime.fromisoformat(MOMENT))
    count = 0
    while reader.conversation() is not None:
        count += sum(1 for _ in reader.rows())
    return count


def test_what_is_valid_is_read_and_files_can_be_joined() -> None:
    assert read(written(valid())) == 7
    assert read(written([*valid(), document("[0.1,-2.5e-05,0]")])) == 8
    assert read(written(valid()) * 2) == 14


def changed(number: int, **values: Any) -> list[Line]:
    lines = valid()
    lines[number] = {name: value for name, value in {**lines[number], **values}.items() if value is not ...}
    return lines


def document(embedding: str) -> Line:
    place = {"kind": "document", "branch": 0, "turn_index": 0, "chunk": 0}
    return {**place, "text": "t", "model": "m", "embedding": embedding}


HOSTILE: dict[str, tuple[list[Line], str]] = {
    "an id that is none": (changed(0, conversation_id="1; DROP TABLE"), "conversation_id is not a UUID"),
    "an id in capitals": (changed(0, conversation_id=str(uuid.UUID(int=10)).upper()), "conversation_id is not a UUID"),
    "NUL in a text": (changed(0, external_id="a\0b"), "external_id is not text without NUL"),
    "a surrogate": (changed(0, title="\ud800"), "title is not text without NUL"),
    "a local time": (changed(0, created_at="2026-11-30T12:00:00"), "created_at is not a time"),
    "another zone": (changed(0, created_at="2026-11-30T12:00:00.000001+05:00"), "created_at is not a time in UTC"),
    "a time to come": (
        changed(1, updated_at="9999-12-31T23:59:59.999999+00:00"),
        "branch: updated_at is before 1970, or",
    ),
    "a time long ago": (
        changed(5, created_at="0001-01-01T00:00:00.000000+00:00"),
        "checkpoint: created_at is before 1970",
    ),
    "a ttl of nothing": (changed(0, ttl=[0, 0, 0]), "ttl: more than nothing and at most 365000 days"),
    "a ttl of ages": (changed(0, ttl=[0, 365_000, 1]), "ttl: more than nothing and at most 365000 days"),
    "a ttl beyond int4": (changed(0, ttl=[2**40, -(2**40) * 30, 1]), "ttl: more than nothing and at most 365000 days"),
    "its own parent": (changed(0, parent_conversation_id=str(uuid.UUID(int=1))), "the conversation is its own parent"),
    "no room for a fork": (changed(0, next_branch=2**31 - 1), "next_branch leaves no room"),
    "no room for a message": (changed(1, next_position=2**31 - 1), "branch 0: next_position leaves no room"),
    "ready since never": (changed(1, status="ready"), "branch 0 is ready, and does not say since when"),
    "a name twice": ([*changed(1, name="x")[:2], changed(2, name="x")[2], *valid()[3:]], "the name 'x' is there twice"),
    "an empty name": (changed(1, name=""), "branch: name has 0 characters; 1 to 255 are allowed"),
    "an id of ages": (changed(0, external_id="x" * 1001), "conversation: external_id has 1001 characters"),
    "tags beyond": (changed(0, tags=["x"] * 101), "tags: 101 of them"),
    "a long tag": (changed(0, tags=["x" * 256]), "a tag has 1 to 255 characters"),
    "an agent of ages": (changed(6, agent_id="x" * 256), "checkpoint: agent_id has 256 characters"),
    "spans without end": (changed(6, spans=[0, 0, 1] * 257), "more than 256 spans"),
    "a checkpoint of itself": (
        changed(6, parent_turn_index=0, parent_sub_step=1, parent_branch=0),
        "its parent is not before it",
    ),
    "two ends": (changed(5, phase="final"), "checkpoint 0.1 of branch 0: the turn ends twice"),
    "a turn to come": (changed(7, taken_turn=1), "request 'k': its turn is beyond the branch's head"),
    "a time too far": (changed(1, ready_at="9999-12-31T23:59:59.999999+00:00"), "branch: ready_at is before 1970, or"),
    **{
        f"an embedding {text[:20]}": ([*valid(), document(text)], "an embedding that is no list of numbers")
        for text in ("junk", "[]", "[nan]", "[1,inf]", "[1e300]", "[1e-300]", "[1_0]", "[" + "1," * 16_000 + "1]")
    },
    "no time": (changed(0, created_at=...), "created_at is missing"),
    "a number too large": (changed(0, version=2**31), "version is not a whole number"),
    "a boolean": (changed(0, version=True), "version is not a whole number"),
    "another column": (changed(0, lease_token=7), "there is no 'lease_token'"),
    "a token": (changed(1, lease_token=7), "there is no 'lease_token'"),
    "metadata no object": (changed(0, metadata="[]"), "metadata is not an object"),
    "metadata no JSON": (changed(0, metadata="{"), "metadata"),
    "a current branch that is missing": (changed(0, current_branch=7), "the current branch is missing"),
    "a branch beyond": (changed(0, next_branch=1), "branch 1 is not below next_branch"),
    "a branch twice": (changed(2, branch=0), "branch 0 is out of order, or there twice"),
    "a status": (changed(1, status="running"), "a status 'running' can't be stored"),
    "an end": (changed(1, status="ended"), "branch 0 has ended, its conversation has not"),
    "a lineage to nowhere": (changed(2, lineage=[5, 0, 0]), "its lineage leads nowhere"),
    "a lineage to itself": (changed(2, lineage=[1, 0, 0]), "its lineage leads nowhere"),
    "a lineage of two": (changed(2, lineage=[0, 0]), "its lineage is not triples"),
    "a head that is missing": (changed(1, sub_step=5), "checkpoint 0.5 of branch 0, a head, is missing"),
    "a message beyond": (changed(4, position=2), "message 2 of branch 0 is beyond its log"),
    "a message twice": (changed(4, position=0), "message 0.0 is out of order, or there twice"),
    "a message of nobody": (changed(4, branch=9), "which is missing"),
    "a message no object": (changed(3, body="[1]"), "message 0 of branch 0 is not an object"),
    "a message no JSON": (changed(3, body='{"a":}'), "message 0 of branch 0"),
    "a message too deep": (changed(3, body='{"a":' + "[" * 600 + "]" * 600 + "}"), "deeper than 500"),
    "spans beyond": (changed(6, spans=[0, 0, 3]), "messages 0 to 3 of branch 0 are not all there"),
    "spans backwards": (changed(6, spans=[0, 2, 1]), "messages 2 to 1 of branch 0 are not all there"),
    "spans negative": (changed(6, spans=[0, -1, 1]), "messages -1 to 1 of branch 0 are not all there"),
    "spans of two": (changed(6, spans=[0, 1]), "its spans are not triples"),
    "a phase": (changed(6, phase="done"), "there is no phase 'done'"),
    "a checkpoint beyond the head": (changed(6, turn_index=1), "is beyond the branch's head"),
    "half a parent": (changed(6, parent_branch=0), "its parent is named in part"),
    "calls no array": (changed(6, tool_calls="{}"), "tool_calls is not an array"),
    "answers of two": (changed(6, answers=[0, 1]), "its answers are not triples"),
    "a request of nobody": (changed(7, branch=4), "its branch is missing"),
    "a request that waits without a body": (changed(7, taken_turn=...), "waits, and has no body"),
    "no digest": (changed(7, digest="0x"), "digest is not hexadecimal digits"),
    "an order": ([*valid()[:6], valid()[3]], "can't stand here"),
    "another kind": ([*valid(), {"kind": "lease"}], "a line of kind 'lease' can't stand here"),
    "a conversation within": ([*valid(), valid()[0]], "can't stand here"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_can_not_be_is_refused_with_its_place(name: str) -> None:
    lines, why = HOSTILE[name]
    if name == "a surrogate":
        data = written(valid()).replace(b'"external_id": "a"', b'"external_id": "\\ud800"')
        why = "external_id is not text"
    else:
        data = written(lines)
    with pytest.raises(TransferError, match=r"x\.jsonl, line \d+ \(byte \d+\): ") as caught:
        read(data)
    assert why in str(caught.value)
    assert caught.value.line is not None


def edit_end(**values: Any) -> bytes:
    *body, end, _ = written(valid()).splitlines(keepends=True)
    return (
        b"".join(body) + json.dumps({**json.loads(end), **values}).encode() + b'\n{"kind":"file","conversations":1}\n'
    )


ENDS: dict[str, tuple[Callable[[], bytes], str]] = {
    "another count": (lambda: edit_end(message=3), "2 lines of kind message are here, 3 were written"),
    "another digest": (lambda: edit_end(sha256="0" * 64), "its digest is another one"),
    "more in the end": (lambda: edit_end(extra=1), "damaged"),
    "no last line": (lambda: written(valid(), trailer=False), "its last line is missing: it was cut off"),
    "another number of conversations": (
        lambda: written(valid()).replace(b'"conversations":1', b'"conversations":2'), "not as many as it says",
    ),
    "nothing": (lambda: b"", "cut off"),
    "no JSON": (lambda: b"hello\n", "no line of JSON"),
    "deep": (lambda: b"[" * 200_000 + b"\n", "nested too deep|no line of JSON"),
    "a list": (lambda: b"[1]\n", "the line is no JSON object"),
    "something else": (lambda: b'{"a": 1}\n', "a conversation was to begin here"),
    "not UTF-8": (lambda: b'{"kind": "\xff"}\n', "no line of JSON"),
    "a newer format": (
        lambda: written(changed(0, format=2)), r"format 2 is of a newer release \(0\.3\.0\); this one reads up to 1",
    ),
    "no format": (lambda: written(changed(0, format="1")), "the number of the format is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_a_file_that_is_not_whole_is_named(name: str) -> None:
    data, why = ENDS[name]
    with pytest.raises(TransferError, match=why):
        read(data())


def test_a_line_without_end_is_not_taken_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_LINE_BYTES", 1000)

    class Endless(io.RawIOBase):
        taken = 0

        def readline(self, size: int | None = -1) -> bytes:
            assert size is not None
            Endless.taken += size
            return b"a" * size

    with pytest.raises(TransferError, match="the line is longer than 1000 bytes"):
        Reader(Endless(), "x").conversation()  # type: ignore[arg-type]
    assert Endless.taken < 2000


@given(st.data())
def test_whatever_is_changed_is_an_error_or_the_same(data: st.DataObject) -> None:
    whole = written(valid())
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.binary(max_size=3))
    damaged = whole[:place] + other + whole[place + data.draw(st.integers(0, 3)) :]
    try:
        assert read(damaged) in (0, 7)
    except TransferError:
        return
    assert damaged.splitlines()[-2] == whole.splitlines()[-2] or damaged == whole
