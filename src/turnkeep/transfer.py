"""Conversations as lines of JSON: the format of an export, and of what an archive holds. Pure.

A conversation is a line `conversation`, then its rows, each on a line that names its `kind`: branches, messages,
checkpoints, requests and perhaps documents, each kind in the order of its key; then a line `end` with their counts and
the SHA-256 of all lines before it. A file ends with a line `file` that says how many conversations it holds. JSON that
people have stored travels as a string of its exact text (G3). What is null is left out. Leases never travel.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Final

from turnkeep.errors import TransferError

FORMAT: Final = 1
MAX_LINE_BYTES: Final = 512 * 1024 * 1024
"""A longer line is not written, and not read."""

Record = dict[str, Any]
"""A row by the names of its columns, as JSON has it: ids and times are text, what is null is missing."""

_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and (value.isascii() or not _has_surrogate(value))


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _is_whole(value: Any, bits: int = 32) -> bool:
    return type(value) is int and -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def _is_time(value: Any) -> bool:
    try:
        return (
            isinstance(value, str)
            and value.endswith("+00:00")
            and datetime.fromisoformat(value).isoformat(timespec="microseconds") == value
        )
    except ValueError:
        return False


def _list_of(one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(one, value))


@dataclass(frozen=True)
class _Type:
    """What a column holds: how a value of the database becomes JSON, and whether a JSON value can be one."""

    what: str
    fits: Callable[[Any], bool]
    plain: Callable[[Any], Any] = lambda value: value


_INT = _Type("a whole number", _is_whole)
_BIG = _Type("a whole number", lambda value: _is_whole(value, 64))
_TEXT = _Type("text without NUL", _is_text)
_JSON = _Type("JSON as text", _is_text)
_UUID = _Type("a UUID", _is_uuid, str)
_TIME = _Type("a time in UTC", _is_time, lambda value: value.isoformat(timespec="microseconds"))
_HEXES = _Type(
    "hexadecimal digits", lambda value: isinstance(value, str) and bool(_HEX.fullmatch(value)), lambda b: b.hex()
)
_INTS = _Type("a list of whole numbers", _list_of(_is_whole), list)
_BIGS = _Type("a list of whole numbers", _list_of(lambda value: _is_whole(value, 64)), list)
_TEXTS = _Type("a list of texts", _list_of(_is_text), list)
_UUIDS = _Type("a list of UUIDs", _list_of(_is_uuid), lambda values: [str(value) for value in values])


@dataclass(frozen=True)
class Kind:
    """A kind of line: its columns in order. Those of `needed` are never null, those of `local` are another
    database's own numbers, which say nothing about what a conversation holds."""

    name: str
    columns: Mapping[str, _Type]
    needed: frozenset[str]
    local: frozenset[str] = frozenset()

    def record(self, row: Sequence[Any]) -> Record:
        """A row of the database, its columns in this order, as a record."""
        return {
            name: kind.plain(value)
            for (name, kind), value in zip(self.columns.items(), row, strict=True)
            if value is not None
        }

    def line(self, record: Record, *, without: Iterable[str] = ()) -> bytes:
        """A record as a line, with its end: the same one whatever order the record is in."""
        kept = {name: record[name] for name in self.columns if name in record and name not in without}
        return _line({"kind": self.name, **kept})

    def checked(self, value: Record) -> Record:
        """The record of a line that has been read. Raises `ValueError` in words."""
        for name, given in value.items():
            if name != "kind" and name not in self.columns:
                raise ValueError(f"{self.name}: there is no {name[:100]!r}")
            if name != "kind" and not self.columns[name].fits(given):
                raise ValueError(f"{self.name}: {name} is not {self.columns[name].what}")
        if missing := self.needed - value.keys():
            raise ValueError(f"{self.name}: {', '.join(sorted(missing))} is missing")
        return {name: value[name] for name in self.columns if name in value}


def _kind(name: str, needed: Mapping[str, _Type], optional: Mapping[str, _Type], order: str, local: str = "") -> Kind:
    columns = {**needed, **optional}
    return Kind(name, {one: columns[one] for one in order.split()}, frozenset(needed), frozenset(local.split()))


def _same(kind: _Type, names: str) -> dict[str, _Type]:
    return dict.fromkeys(names.split(), kind)


CONVERSATION: Final = _kind(
    "conversation",
    {
        **_same(_INT, "format version current_branch next_branch"),
        **_same(_TEXT, "release external_id"),
        **_same(_UUID, "conversation_id"),
        **_same(_TIME, "exported_at created_at"),
        "tags": _TEXTS,
        "metadata": _JSON,
        "update_ids": _UUIDS,
    },
    {
        **_same(_TEXT, "agent_id tenant title"),
        **_same(_UUID, "parent_conversation_id"),
        **_same(_TIME, "ended_at archived_at"),
        "ttl": _BIGS,  # months, days, microseconds
    },
    "format release exported_at conversation_id external_id agent_id tenant title tags metadata version update_ids"
    " parent_conversation_id current_branch next_branch created_at ended_at archived_at ttl",
    local="format release exported_at archived_at",
)
BRANCH: Final = _kind(
    "branch",
    {
        **_same(_INT, "branch turn_index sub_step next_position attempts"),
        "status": _TEXT,
        "lineage": _INTS,
        **_same(_TIME, "turn_started_at updated_at"),
    },
    {"name": _TEXT, "fork_id": _UUID, **_same(_TIME, "ready_at not_before"), "failure": _JSON},
    "branch name status turn_index sub_step next_position lineage fork_id ready_at turn_started_at not_before attempts"
    " failure updated_at",
)
MESSAGE: Final = _kind("message", {**_same(_INT, "branch position"), "body": _JSON}, {}, "branch position body")
CHECKPOINT: Final = _kind(
    "checkpoint",
    {
        **_same(_INT, "turn_index sub_step branch"),
        "phase": _TEXT,
        "created_at": _TIME,
        "write_id": _UUID,
        "spans": _INTS,
    },
    {
        "id": _BIG,
        **_same(_INT, "parent_turn_index parent_sub_step parent_branch origin_branch"),
        "agent_id": _TEXT,
        **_same(_JSON, "tool_calls tool_results state"),
        "answers": _INTS,
        "origin_conversation": _UUID,
    },
    "turn_index sub_step branch id parent_turn_index parent_sub_step parent_branch phase agent_id created_at write_id"
    " spans tool_calls tool_results answers state origin_conversation origin_branch",
    local="id",
)
REQUEST: Final = _kind(
    "request",
    {"key": _TEXT, "number": _BIG, "branch": _INT, "digest": _HEXES, "received_at": _TIME},
    {"body": _JSON, "taken_turn": _INT},
    "key number branch body digest received_at taken_turn",
    local="number",
)
DOCUMENT: Final = _kind(
    "document",
    {**_same(_INT, "branch turn_index chunk")},
    {**_same(_TEXT, "text model embedding"), "created_at": _TIME, "left_out": _BIG},
    "branch turn_index chunk text model created_at embedding left_out",
)
ROWS: Final = (BRANCH, MESSAGE, CHECKPOINT, REQUEST, DOCUMENT)
KINDS: Final = {kind.name: kind for kind in (CONVERSATION, *ROWS)}


def text(value: Record) -> bytes:
    """A record as JSON on a line, without its end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _line(value: Record) -> bytes:
    return text(value) + b"\n"


class Content:
    """The digest of what a conversation holds, whichever database its rows are in, and which release wrote them.

    With `local` it is that of the rows alone, a database's own numbers included.
    """

    def __init__(self, *, local: bool = False) -> None:
        self._hash = hashlib.sha256()
        self._local = local

    def add(self, kind: Kind, *records: Record) -> None:
        """Take further lines into it, in the order of the format. Documents can be made again, and say nothing."""
        if kind is DOCUMENT or (self._local and kind is CONVERSATION):
            return
        for record in records:
            self._hash.update(kind.line(record, without=() if self._local else kind.local))

    def digest(self) -> bytes:
        """The digest of all lines so far."""
        return self._hash.digest()


class Writer:
    """Writes conversations, line by line, to whatever takes bytes."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.conversations = 0
        self.bytes = 0
        self._hash = hashlib.sha256()

    def row(self, kind: Kind, record: Record) -> bytes:
        """The line of a row, counted and in the digest. Raises `TransferError` where it is too long."""
        line = kind.line(record)
        if len(line) > MAX_LINE_BYTES:
            raise TransferError(f"a {kind.name} takes {len(line)} bytes; a line has at most {MAX_LINE_BYTES}")
        if kind is CONVERSATION:
            self.counts = {one.name: 0 for one in ROWS}
            self._hash = hashlib.sha256()
        else:
            self.counts[kind.name] += 1
        self._hash.update(line)
        self.bytes += len(line)
        return line

    def rows(self, kind: Kind, records: Iterable[Record]) -> bytes:
        """The lines of several."""
        return b"".join([self.row(kind, record) for record in records])

    def end(self) -> bytes:
        """The line that ends a conversation."""
        self.conversations += 1
        line = _line({"kind": "end", **self.counts, "sha256": self._hash.hexdigest()})
        self.bytes += len(line)
        return line

    def end_of_file(self) -> bytes:
        """The line that ends a file."""
        return _line({"kind": "file", "conversations": self.conversations})


class Reader:
    """Reads conversations line by line, and believes nothing: each line is checked, and what it says of others.

    Raises `TransferError`, which names the line and where it begins. With `latest`, a time in UTC, it is strict: what
    comes from elsewhere must be what the store itself would have taken.
    """

    def __init__(self, stream: BinaryIO, name: str, latest: datetime | None = None) -> None:
        self._stream = stream
        self._latest = None if latest is None else _TIME.plain(latest)
        self._name = name
        self.number = 0
        self.position = 0
        self._next = 0
        self._since_end_of_file = 0
        self._ended = False

    def conversation(self) -> Record | None:
        """The first line of the next conversation, or None at the end."""
        while True:
            line = self._line()
            if line is None:
                if self._since_end_of_file or not self._ended:
                    raise self.error("the file ends here, and its last line is missing: it was cut off")
                return None
            value = self._value(line)
            if value.get("kind") == "file":
                if value != {"kind": "file", "conversations": self._since_end_of_file}:
                    raise self.error(f"{self._since_end_of_file} conversations are here, and not as many as it says")
                self._since_end_of_file, self._ended = 0, True
                continue
            self._ended = False
            return self._header(value, line)

    def rows(self) -> Iterator[tuple[Kind, Record]]:
        """The rows of the conversation begun, to its end, which is checked."""
        from turnkeep._transfer_checks import Checks

        checks = self._checked(Checks, self._head, self._latest)
        counts = {kind.name: 0 for kind in ROWS}
        order = 0
        while True:
            line = self._line()
            if line is None:
                raise self.error("the file ends in the middle of a conversation: it was cut off")
            value = self._value(line)
            if value.get("kind") == "end":
                if value != {"kind": "end", **counts, "sha256": self._hash.hexdigest()}:
                    raise self.error(self._damage(value, counts))
                self._checked(checks.end)
                self._since_end_of_file += 1
                return
            kind = KINDS.get(str(value.get("kind")))
            if kind not in ROWS or ROWS.index(kind) < order:
                raise self.error(f"a line of kind {str(value.get('kind'))[:100]!r} can't stand here")
            order = ROWS.index(kind)
            record: Record = self._checked(kind.checked, value)
            self._checked(checks.row, kind, record)
            counts[kind.name] += 1
            self._hash.update(line)
            yield kind, record

    def error(self, reason: str) -> TransferError:
        """The error of the line that was read last."""
        return TransferError(
            f"{self._name}, line {self.number} (byte {self.position}): {reason}", self.number, self.position
        )

    def _header(self, value: Record, line: bytes) -> Record:
        if value.get("kind") != "conversation":
            raise self.error("this is not an export of Turnkeep's: a conversation was to begin here")
        number = value.get("format")
        if type(number) is not int or number < 1:
            raise self.error("the number of the format is missing")
        if number > FORMAT:
            raise self.error(
                f"format {number} is of a newer release ({str(value.get('release'))[:50]}); this one reads up to "
                f"{FORMAT}: install that release"
            )
        head: Record = self._checked(CONVERSATION.checked, value)
        self._head = head
        self._hash = hashlib.sha256(line)
        return head

    def _damage(self, value: Record, counts: Mapping[str, int]) -> str:
        which = f"conversation {self._head['conversation_id']}"
        for name, count in counts.items():
            if value.get(name) != count:
                return f"{which} is damaged: {count} lines of kind {name} are here, {value.get(name)!r} were written"
        return f"{which} is damaged: its digest is another one than was written"

    def _checked(self, check: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return check(*arguments)
        except ValueError as error:
            raise self.error(str(error)) from None

    def _line(self) -> bytes | None:
        self.position = self._next
        self.number += 1
        try:
            line = self._stream.readline(MAX_LINE_BYTES + 1)
        except (EOFError, OSError, ValueError) as error:  # what gzip and lzma say of a file that is cut or damaged
            raise self.error(f"it can't be read any further: {error}") from error
        except Exception as error:
            if type(error).__name__ not in ("LZMAError", "error"):
                raise
            raise self.error(f"it can't be read any further: {error}") from error
        if not line:
            return None
        self._next += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise self.error(f"the line is longer than {MAX_LINE_BYTES} bytes")
        if not line.endswith(b"\n"):
            raise self.error("the file ends in the middle of a line: it was cut off")
        return line

    def _value(self, line: bytes) -> Record:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
            raise self.error(f"this is not an export of Turnkeep's: no line of JSON ({reason})") from None
        if not isinstance(value, dict):
            raise self.error("this is not an export of Turnkeep's: the line is no JSON object")
        return value
