"""An exported conversation as another one, with a new id. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from turnkeep.transfer import BRANCH, CHECKPOINT, REQUEST, Kind, Record

_NOT_COPIED = ("ready_at", "not_before", "failure", "fork_id")


def copied(header: Record, rows: Iterator[tuple[Kind, Record]]) -> tuple[Record, Iterator[tuple[Kind, Record]]]:
    """The conversation as a copy. Its id, and that of its parent's copy, come from the old one and the export's time.

    As in a fork into another conversation, checkpoints say where they come from, what is open is nobody's work yet, and
    requests stay behind: a worker would else do them a second time.
    """
    new = {**header, "conversation_id": _copy_id(header, header["conversation_id"]), "version": 0, "update_ids": []}
    new["external_id"] = new["conversation_id"]
    if "parent_conversation_id" in header:
        new["parent_conversation_id"] = _copy_id(header, header["parent_conversation_id"])
    return new, _rows(header["conversation_id"], rows)


def _copy_id(header: Record, conversation: str) -> str:
    return str(uuid.uuid5(uuid.UUID(conversation), f"copy of {header['exported_at']}"))


def _rows(source: str, rows: Iterator[tuple[Kind, Record]]) -> Iterator[tuple[Kind, Record]]:
    for kind, record in rows:
        if kind is BRANCH:
            kept = {name: value for name, value in record.items() if name not in _NOT_COPIED}
            status = "ended" if record["status"] == "ended" else "idle"
            yield kind, {**kept, "status": status, "attempts": 0}
        elif kind is CHECKPOINT:
            origin = {"origin_conversation": source, "origin_branch": record["branch"]}
            yield kind, {**origin, **record}
        elif kind is not REQUEST:
            yield kind, record
