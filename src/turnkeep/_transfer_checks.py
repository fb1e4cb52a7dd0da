"""What the rows of a conversation must agree on before they are stored. Pure.

It looks at each row once, in the order of the format, and keeps little of it: a conversation may be huge.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from turnkeep import jsontext
from turnkeep.errors import InvalidInputError
from turnkeep.spans import MAX_PARTS, owner_of

_STATUSES = frozenset(("idle", "open", "ready", "waiting", "ended", "failed"))
_PHASES = frozenset(("input", "tool_calls", "started", "tool_results", "step", "final"))
_TIMES = frozenset(["created_at", "ended_at", "archived_at", "turn_started_at", "updated_at", "received_at"])
# As the store itself takes them, in characters.
_LONGEST = {"external_id": 1000, "title": 1000, "agent_id": 255, "tenant": 255, "name": 255, "model": 255}
_MOST_TAGS = 100
_MOST = 2**31 - 1
_MOST_DIMENSIONS = 16_000
_LEAST_REAL, _GREATEST_REAL = 1.5e-45, 3.4028234e38
_EARLIEST = "1970-01-01T00:00:00.000000+00:00"
_LONGEST_TTL_DAYS = 365_000
_DAY = 86_400_000_000  # in microseconds

Record = dict[str, Any]


class Checks:
    """Rows of one conversation against each other. Raises `ValueError` in words.

    With `latest` each value must also be one that the store would have taken, and no time be later: that is asked of
    what comes from elsewhere, not of an archive's own.
    """

    def __init__(self, head: Record, latest: str | None = None) -> None:
        self._head = head
        self._latest = latest
        self._branches: dict[int, Record] = {}
        self._last: dict[str, tuple[Any, ...]] = {}
        self._keys: set[str] = set()
        # Positions that are there, on each branch, as (starts, stops) of runs: as good as always one.
        self._runs: dict[int, tuple[list[int], list[int]]] = {}
        self._heads: set[tuple[int, int, int]] = set()
        _need(head["next_branch"] >= 1, "next_branch is less than 1")
        _check_object(head["metadata"], "metadata")
        _need(len(head.get("ttl", [0] * 3)) == 3, "ttl is not months, days and microseconds")
        self._names: set[str] = set()
        self._ended: set[int] = set()  # branches whose newest turn has ended
        self._turn = -1
        if latest is not None:
            _check_ttl(head)
            self._strictly("conversation", head)
            _need(head["next_branch"] < _MOST, "next_branch leaves no room for a fork")
            _need(head.get("parent_conversation_id") != head["conversation_id"], "the conversation is its own parent")
            _need(
                len(head["tags"]) <= _MOST_TAGS, f"tags: {len(head['tags'])} of them; at most {_MOST_TAGS} are allowed"
            )
            for tag in head["tags"]:
                _need(1 <= len(tag) <= _LONGEST["agent_id"], f"a tag has 1 to {_LONGEST['agent_id']} characters")

    def row(self, kind: Any, record: Record) -> None:
        """Check a row."""
        if self._latest is not None:
            self._strictly(kind.name, record)
        match kind.name:
            case "branch":
                self._branch(record)
            case "message":
                self._message(record)
            case "checkpoint":
                self._checkpoint(record)
            case "request":
                self._request(record)
            case _:
                self._document(record)

    def end(self) -> None:
        """Check what can be said only when all is there."""
        _need(self._head["current_branch"] in self._branches, "the current branch is missing")
        for turn, sub_step, branch in self._heads:
            raise ValueError(f"checkpoint {turn}.{sub_step} of branch {branch}, a head, is missing")

    def _branch(self, row: Record) -> None:
        number, lineage = row["branch"], row["lineage"]
        self._in_order("branch", number)
        _need(0 <= number < self._head["next_branch"], f"branch {number} is not below next_branch")
        _need(row["status"] in _STATUSES, f"branch {number}: a status {row['status'][:50]!r} can't be stored")
        _need(
            row["status"] != "ended" or "ended_at" in self._head, f"branch {number} has ended, its conversation has not"
        )
        _need(row["turn_index"] >= -1 and row["sub_step"] >= 0, f"branch {number}: its head can't be")
        _need(row["next_position"] >= 0 and row["attempts"] >= 0, f"branch {number}: a number is negative")
        _need(len(lineage) % 3 == 0, f"branch {number}: its lineage is not triples")
        places = [(lineage[i + 1], lineage[i + 2]) for i in range(0, len(lineage), 3)]
        _need(
            all(ancestor in self._branches for ancestor in lineage[::3])
            and list(lineage[::3]) == sorted(set(lineage[::3]))
            and places == sorted(places),
            f"branch {number}: its lineage leads nowhere",
        )
        if "failure" in row:
            _check_object(row["failure"], f"branch {number}: failure")
        self._branches[number] = row
        if row["turn_index"] >= 0:
            self._heads.add(
                (row["turn_index"], row["sub_step"], owner_of(number, lineage, row["turn_index"], row["sub_step"]))
            )

    def _message(self, row: Record) -> None:
        branch, position = row["branch"], row["position"]
        self._in_order("message", branch, position)
        known = self._branches.get(branch)
        _need(known is not None, f"message {position} is of branch {branch}, which is missing")
        assert known is not None
        _need(0 <= position < known["next_position"], f"message {position} of branch {branch} is beyond its log")
        _check_object(row["body"], f"message {position} of branch {branch}")
        starts, stops = self._runs.setdefault(branch, ([], []))
        if stops and stops[-1] == position:
            stops[-1] += 1
        else:
            starts.append(position)
            stops.append(position + 1)

    def _checkpoint(self, row: Record) -> None:
        turn, sub_step, branch = row["turn_index"], row["sub_step"], row["branch"]
        name = f"checkpoint {turn}.{sub_step} of branch {branch}"
        self._in_order("checkpoint", turn, sub_step, branch)
        known = self._branches.get(branch)
        _need(known is not None, f"{name}: the branch is missing")
        assert known is not None
        _need(
            turn >= 0 and sub_step >= 0 and (turn, sub_step) <= (known["turn_index"], known["sub_step"]),
            f"{name} is beyond the branch's head",
        )
        _need(row["phase"] in _PHASES, f"{name}: there is no phase {row['phase'][:50]!r}")
        parent = [part in row for part in ("parent_turn_index", "parent_sub_step", "parent_branch")]
        _need(all(parent) or not any(parent), f"{name}: its parent is named in part")
        self._spans(row["spans"], name)
        answers = row.get("answers", [])
        _need(len(answers) % 3 == 0 and all(number >= 0 for number in answers), f"{name}: its answers are not triples")
        for part in ("tool_calls", "tool_results"):
            if part in row:
                _need(row[part].lstrip(" \t\r\n").startswith("["), f"{name}: {part} is not an array")
                _check_json(row[part], f"{name}: {part}")
        if "state" in row:
            _check_json(row["state"], f"{name}: state")
        self._heads.discard((turn, sub_step, branch))

    def _spans(self, spans: list[int], name: str) -> None:
        _need(len(spans) % 3 == 0, f"{name}: its spans are not triples")
        for i in range(0, len(spans), 3):
            branch, start, stop = spans[i : i + 3]
            starts, stops = self._runs.get(branch, ([], []))
            run = bisect_right(starts, start) - 1
            _need(
                start < stop and run >= 0 and stop <= stops[run],
                f"{name}: messages {start} to {stop} of branch {branch} are not all there",
            )

    def _request(self, row: Record) -> None:
        self._in_order("request", row["number"])
        _need(row["key"] not in self._keys, f"the key {row['key'][:100]!r} is there twice")
        _need(1 <= len(row["key"]) <= 500, "a key has 1 to 500 characters")
        self._keys.add(row["key"])
        _need(row["branch"] in self._branches, f"request {row['key'][:100]!r}: its branch is missing")
        _need(row.get("taken_turn", 0) >= 0, f"request {row['key'][:100]!r}: there is no such turn")
        _need("body" in row or "taken_turn" in row, f"request {row['key'][:100]!r} waits, and has no body")
        if "body" in row:
            name = f"request {row['key'][:100]!r}"
            _need(row["body"].lstrip(" \t\r\n")[:1] in ("{", "["), f"{name}: its body is no message")
            _check_json(row["body"], name)

    def _document(self, row: Record) -> None:
        self._in_order("document", row["branch"], row["turn_index"], row["chunk"])
        _need(row["branch"] in self._branches, "a document's branch is missing")
        _need(row["turn_index"] >= 0 and row["chunk"] >= 0, "a document of no turn")
        _need("embedding" not in row or ("model" in row and "text" in row), "an embedding without text and model")

    def _strictly(self, kind: str, row: Record) -> None:
        """Check what the database would take and the store would not."""
        assert self._latest is not None
        for name, longest in _LONGEST.items():
            _need(
                name not in row or 1 <= len(row[name]) <= longest,
                f"{kind}: {name} has {len(row.get(name, ''))} characters; 1 to {longest} are allowed",
            )
        for name in ("ready_at", "not_before"):
            _need(_EARLIEST <= row.get(name, _EARLIEST) < "9", f"{kind}: {name} is before 1970, or too far off")
        if kind == "branch":
            self._strict_branch(row)
        elif kind == "checkpoint":
            self._strict_checkpoint(row)
        elif kind == "request" and row["branch"] in self._branches:
            _need(
                row.get("taken_turn", -1) <= self._branches[row["branch"]]["turn_index"],
                f"request {row['key'][:100]!r}: its turn is beyond the branch's head",
            )
        elif kind == "document" and "embedding" in row:
            _check_embedding(row["embedding"])
        for name in _TIMES & row.keys():
            _need(_EARLIEST <= row[name] <= self._latest, f"{kind}: {name} is before 1970, or later than tomorrow")

    def _strict_branch(self, row: Record) -> None:
        number = row["branch"]
        _need(row["next_position"] < _MOST, f"branch {number}: next_position leaves no room for a message")
        _need(row["status"] != "ready" or "ready_at" in row, f"branch {number} is ready, and does not say since when")
        if "name" in row:
            _need(row["name"] not in self._names, f"branch {number}: the name {row['name']!r} is there twice")
            self._names.add(row["name"])

    def _strict_checkpoint(self, row: Record) -> None:
        turn, sub_step, branch = row["turn_index"], row["sub_step"], row["branch"]
        name = f"checkpoint {turn}.{sub_step} of branch {branch}"
        _need(len(row["spans"]) <= 3 * MAX_PARTS, f"{name}: more than {MAX_PARTS} spans")
        parent = row.get("parent_turn_index", -1), row.get("parent_sub_step", -1)
        _need(parent < (turn, sub_step), f"{name}: its parent is not before it")
        if turn != self._turn:
            self._turn, self._ended = turn, set()
        if row["phase"] == "final":
            _need(branch not in self._ended, f"{name}: the turn ends twice")
            self._ended.add(branch)

    def _in_order(self, kind: str, *key: int) -> None:
        last = self._last.get(kind)
        _need(last is None or last < key, f"{kind} {'.'.join(map(str, key))} is out of order, or there twice")
        self._last[kind] = key


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_ttl(head: Record) -> None:
    if "ttl" not in head:
        return
    months, days, microseconds = head["ttl"]
    whole = (months * 30 + days) * _DAY + microseconds
    _need(
        0 < whole <= _LONGEST_TTL_DAYS * _DAY
        and max(abs(months) * 30, abs(days), abs(microseconds) // _DAY) <= _LONGEST_TTL_DAYS,
        f"ttl: more than nothing and at most {_LONGEST_TTL_DAYS} days are allowed",
    )


def _check_embedding(text: str) -> None:
    try:
        plain = text.isascii() and "_" not in text and text[:1] + text[-1:] == "[]"
        numbers = [float(number) for number in text[1:-1].split(",")] if plain else []
    except ValueError:
        numbers = []
    _need(
        0 < len(numbers) <= _MOST_DIMENSIONS
        and all(number == 0 or _LEAST_REAL < abs(number) <= _GREATEST_REAL for number in numbers),
        "an embedding that is no list of numbers in single precision",
    )


def _check_object(text: str, what: str) -> None:
    _need(text.lstrip(" \t\r\n").startswith("{"), f"{what} is not an object")
    _check_json(text, what)


def _check_json(text: str, what: str) -> None:
    try:
        jsontext.check_stored(text, what)
    except InvalidInputError as error:
        raise ValueError(str(error)) from None
