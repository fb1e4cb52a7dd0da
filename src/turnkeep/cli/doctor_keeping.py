"""What `turnkeep doctor` makes of how a schema is kept: space, snapshots, archives, documents, the whole of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from turnkeep.cli.doctor_findings import Finding, some
from turnkeep.cli.text import ago, count, duration, printable

if TYPE_CHECKING:
    from turnkeep.store._health import Consistency, Health, Holder, Kept, Letters, Observed, Vacuumed, Vectors

_MOST = 100_000  # of what is counted one by one
_LATE = timedelta(hours=1)  # for a document that is due
_LONG = timedelta(hours=1)  # for a snapshot
_BEHIND = 5  # times the dead rows at which autovacuum begins
_FEW_ROWS = 10_000
_MANY_TRANSACTIONS = 1_000_000
_MANY_OLD = 1_000  # conversations that are worth archiving
_MANY_VECTORS = 20_000  # that take long to compare one by one


def health_findings(health: Health, schema: str, now: datetime) -> Iterator[Finding]:
    """Judge how the schema is kept. `now` is when it was looked at."""
    yield consistency_finding(health.consistency)
    yield from documents_findings(health.letters, health.vectors, schema)
    yield archive_finding(health.kept, health.letters.now)
    yield holders_finding(health.holders, now)


def consistency_finding(found: Consistency) -> Finding:
    """Judge whether heads, checkpoints and messages belong together."""
    if not found.broken:
        which = "all branches" if found.all_of_them else "some branches; --deep looks at all"
        text = f"heads, checkpoints and messages belong together ({found.branches:,} looked at, {which})"
        return Finding("consistency", "ok", text)
    first = [
        f"{one.conversation_id}{'' if one.branch is None else f':{one.branch}'} ({one.problem})" for one in found.broken
    ]
    number = f"{count(len({one.conversation_id for one in found.broken}), 'conversation')} of those looked at"
    remedy = (
        "Somebody has written to the tables, or the disk has lost something: restore these from a backup "
        "(docs/how-to/backup.md), or remove what can't be mended by `turnkeep erase`."
        + ("" if found.all_of_them else " `turnkeep doctor --deep` finds all of them.")
    )
    return Finding("consistency", "problem", f"{number} lack something: {some(first)}", remedy)


def documents_findings(found: Letters, vectors: Vectors, schema: str) -> Iterator[Finding]:
    """Judge whether search knows of what was said."""
    if found.dead:
        reasons = some([printable(reason) for reason in found.reasons])
        remedy = (
            "Mend what is named, then run `turnkeep embed --retry-failed`: search by meaning does not know these turns."
        )
        yield Finding("documents", "warn", f"{_counted(found.dead)} given up: {reasons}", remedy)
    late = found.oldest_due is not None and found.now - found.oldest_due > _LATE
    if found.oldest_due is not None and late:
        text = f"{_counted(found.due)} due, the first since {duration(found.now - found.oldest_due)}"
        yield Finding("documents", "warn", text, "Run `turnkeep embed`: no worker indexes what was said.")
    if not found.dead and not late:
        yield Finding("documents", "ok", f"{_counted(found.due)} due, none given up")
    if vectors.vectors >= _MANY_VECTORS and not vectors.indexes:
        text = (
            f"{_counted(vectors.vectors)} with a vector, and no index to find them by: a search compares each of them"
        )
        remedy = "Run `turnkeep search --index`, which makes one beside the writers."
        yield Finding("indexes", "warn", text, remedy)


def archive_finding(kept: Kept, now: datetime) -> Finding:
    """Judge whether conversations that have ended are put away."""
    if not kept.old:
        return Finding("archive", "ok", "no conversation that ended over 30 days ago is left to be archived")
    more = "over " if kept.old >= _MOST else ""
    text = f"{more}{count(kept.old, 'conversation')} ended over 30 days ago and not archived"
    first = "" if kept.oldest_end is None else f", the first {ago(kept.oldest_end, now)}"
    remedy = "`turnkeep archive --ended-before 30d` puts them away: a quarter of the space, still found and shown."
    return Finding("archive", "warn" if kept.old >= _MANY_OLD else "ok", text + first, remedy)


def vacuum_findings(tables: Sequence[Vacuumed], observed: Observed, schema: str, now: datetime) -> Iterator[Finding]:
    """Judge whether dead rows are removed."""
    if not observed.autovacuum:
        text = "off for the whole server: tables only grow, and ids run out"
        yield Finding("autovacuum", "problem", text, f"Run {observed.enabling}")
        return
    off = [one.name for one in tables if not one.autovacuum]
    if off:
        remedy = " ".join(f'ALTER TABLE "{schema}"."{name}" RESET (autovacuum_enabled);' for name in off)
        yield Finding("autovacuum", "warn", f"off for {some(off)}", f"Run {remedy}")
    behind = [
        one
        for one in tables
        if one.autovacuum
        and one.dead_rows > max(_FEW_ROWS, _BEHIND * one.threshold)
        and (one.vacuumed_at is None or now - one.vacuumed_at > _LONG)
    ]
    if behind:
        names = [f"{one.name} ({one.dead_rows:,} dead, {one.live_rows:,} live)" for one in behind]
        remedy = " ".join(f'VACUUM "{schema}"."{one.name}";' for one in behind)
        why = "If that removes nothing, somebody holds a snapshot; else raise autovacuum_vacuum_cost_limit."
        yield Finding("autovacuum", "warn", f"far behind: {some(names)}", f"Run {remedy} {why}")
    if not off and not behind:
        yield Finding("autovacuum", "ok", "on, and not behind")


def holders_finding(holders: Sequence[Holder], now: datetime) -> Finding:
    """Judge who keeps dead rows from being removed, on the whole server."""
    old = [
        one
        for one in holders
        if (one.since is not None and now - one.since > _LONG)
        or one.kind == "idle slot"
        or one.transactions > _MANY_TRANSACTIONS
    ]
    if not old:
        return Finding("snapshots", "ok", "nobody keeps dead rows from being removed for long")
    names = [
        f"{one.kind} {printable(one.name)}" + ("" if one.since is None else f" since {duration(now - one.since)}")
        for one in old
    ]
    return Finding("snapshots", "warn", f"dead rows can't be removed: {some(names)}", f"Run {old[0].ending}.")


def statements_finding(found: Observed) -> Finding:
    """Judge whether it can be told how long saves take."""
    if found.statements_loaded and found.statements_created:
        return Finding("pg_stat_statements", "ok", "in use")
    create = "run CREATE EXTENSION pg_stat_statements in this database"
    if found.statements_loaded:
        return Finding("pg_stat_statements", "ok", "loaded, but not in this database", f"To see it, {create}.")
    remedy = f"Add pg_stat_statements to shared_preload_libraries, restart, then {create}."
    first = "" if found.statements_available else "Have its package (postgresql-contrib) installed. "
    return Finding("pg_stat_statements", "ok", "not there: how long saves take is not known to stats", first + remedy)


def archiver_finding(found: Observed, now: datetime) -> Finding:
    """Judge whether the log is archived, for recovery to a moment."""
    if not found.archiving:
        return Finding("wal archive", "ok", "off: there is no recovery to a moment, see docs/how-to/backup.md")
    failed, done = found.archive_failed_at, found.archived_at
    if failed is not None and (done is None or failed > done):
        text = f"{found.archive_failures:,} failures, the last {ago(failed, now)}, none since has worked"
        remedy = (
            "See the server's log, and mend archive_command: until then the log fills the disk, and nothing newer "
            "can be recovered."
        )
        return Finding("wal archive", "problem", text, remedy)
    return Finding(
        "wal archive", "ok", "on, nothing archived yet" if done is None else f"on, the last {ago(done, now)}"
    )


def _counted(number: int) -> str:
    return f"{'over ' if number >= _MOST else ''}{count(number, 'document')}"
