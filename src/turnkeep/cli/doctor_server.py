"""What `turnkeep doctor` makes of the server: version, durability, replication, limits, clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import turnkeep
from turnkeep.cli.doctor_findings import Finding, some
from turnkeep.cli.text import ago, count

if TYPE_CHECKING:
    from turnkeep.store._doctor import Cluster, Examination, Override, Server, Setting

_SUPPORTED = range(15, 19)
_SLOW = 0.05  # seconds a round trip, of which a turn makes several
_SKEW = 2.0  # seconds
_CROWDED = 0.8  # of the connections
_CONNECTIONS = 22  # that a worker opens at most
_OLD_TRANSACTION = timedelta(hours=1)
_OLD_IDS, _VERY_OLD_IDS = 1_000_000_000, 1_600_000_000  # of the 2,147,483,647 there are
# Milliseconds below which a timeout can cut off what it should not, and what that is.
_TIMEOUTS = {
    "statement_timeout": (5_000, "a save that waits or is large"),
    "lock_timeout": (1_000, "a save that waits for another writer"),
    "transaction_timeout": (60_000, "a transactional tool at work"),
    "idle_in_transaction_session_timeout": (60_000, "a transactional tool at work"),
}
_SYNCHRONOUS = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\(", re.IGNORECASE)


def server_findings(found: Examination) -> Iterator[Finding]:
    """Judge the server."""
    yield from _connection(found.server)
    yield from _release(found.server)
    if found.server.in_recovery or found.server.read_only:
        why = "is a standby" if found.server.in_recovery else "has default_transaction_read_only on"
        yield Finding("writable", "problem", f"the server {why}: nothing can be saved", "Connect to the primary.")
    yield from _durability(found)
    yield replication_finding(found.settings, found.cluster)
    yield timeouts_finding(found.settings, found.server)
    workers = 0 if found.health is None else found.health.kept.workers
    yield connections_finding(found, workers)
    yield transactions_finding(found.cluster, datetime.now(UTC))


def _connection(server: Server) -> Iterator[Finding]:
    times = f"connected in {server.connected_in * 1000:.1f} ms, a round trip takes {server.round_trip * 1000:.1f} ms"
    where = f"{server.role_name} on {server.database_name} at {server.address}: {times}"
    slow = server.round_trip > _SLOW
    yield Finding("connection", "warn" if slow else "ok", where, "Run near the database." if slow else None)
    pooled = "through a pooler: nothing is prepared, nothing depends on a session" if server.pooled else "direct"
    yield Finding("pooler", "ok", pooled)
    yield clock_finding(server.clock_ahead, server.clock_error)


def clock_finding(ahead: float, error: float) -> Finding:
    """Judge how far the server's clock is from this machine's. Leases go by the server's alone."""
    far = abs(ahead) - error > _SKEW
    exactly = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this machine's, give or take {error:.3f} s"
    if not far:
        return Finding("clock", "ok", f"the server's is {exactly}")
    remedy = "Keep both by NTP: leases and the order of turns do not depend on it, the times in logs and messages do."
    return Finding("clock", "warn", f"the server's is {exactly}", remedy)


def _release(server: Server) -> Iterator[Finding]:
    major = server.version_number // 10_000
    ours = f"Turnkeep {turnkeep.__version__}"
    if major in _SUPPORTED:
        yield Finding("version", "ok", f"PostgreSQL {server.version}, {ours}")
    elif major < _SUPPORTED[0]:
        yield Finding("version", "problem", f"PostgreSQL {server.version} is too old", "Upgrade to 15 or newer.")
    else:
        newest = f"PostgreSQL {server.version} is newer than {_SUPPORTED[-1]}, up to which {ours} is tested"
        yield Finding("version", "warn", newest, "Look for a newer release of Turnkeep.")
    if server.encoding == "UTF8":
        yield Finding("encoding", "ok", "UTF8")
    else:
        remedy = "Create a database with ENCODING 'UTF8' TEMPLATE template0, and use that."
        yield Finding("encoding", "problem", f"{server.encoding} can't hold every text", remedy)


# -- durability


def _durability(found: Examination) -> Iterator[Finding]:
    """G1: nothing acknowledged is lost, under the durability that Postgres has by default."""
    judged = (
        ("fsync", "problem", "with it off a crash of the host can destroy the whole database (G1)"),
        ("full_page_writes", "warn", "unless the file system never writes half a page (G1)"),
        ("synchronous_commit", "problem", "with it off a crash of the server loses what was acknowledged (G1)"),
    )
    values = {name: found.settings[name].value for name, _, _ in judged if name in found.settings}
    for name, level, why in judged:
        if values.get(name) == "off":
            where, remedy = _mended(name, found.settings[name], found.server)
            yield Finding(name, "problem" if level == "problem" else "warn", f"off{where}", f"{remedy}: {why}.")
    if "off" not in values.values():
        yield Finding("durability", "ok", ", ".join(f"{name} {value}" for name, value in values.items()))
    others = [one for one in found.overrides if _weakens(one, found.server)]
    if others:
        names = some([f"{one.setting} for {_whose(one)}" for one in others])
        remedy = " ".join(f"{_reset(one.setting.split('=')[0], one)};" for one in others)
        yield Finding("settings", "warn", f"workers that connect otherwise would get {names}", f"Run {remedy}")


def _weakens(one: Override, server: Server) -> bool:
    """Whether a setting takes effect in other sessions than this one, and weakens them."""
    if one.role_name in (None, server.role_name):
        return False  # what this session has itself
    return one.setting in ("synchronous_commit=off", "default_transaction_read_only=on")


def _mended(name: str, setting: Setting, server: Server) -> tuple[str, str]:
    """Where a setting that is off was made, in words, and how to undo that."""
    database, role = f'"{server.database_name}"', f'"{server.role_name}"'
    match setting.source:
        case "database":
            return f", set for the database {database}", f"Run ALTER DATABASE {database} RESET {name}"
        case "user":
            return f", set for the role {role}", f"Run ALTER ROLE {role} RESET {name}"
        case "database user":
            where = f"{role} IN DATABASE {database}"
            return f", set for the role {role} in {database}", f"Run ALTER ROLE {where} RESET {name}"
        case "client" | "session":
            return ", set by the DSN or PGOPTIONS", "Take it out there"
        case _:
            return ", for the whole server", f"Run ALTER SYSTEM SET {name} = on, and let it reload by pg_reload_conf()"


def _whose(one: Override) -> str:
    return f"role {one.role_name}" + (f" in {one.database_name}" if one.database_name else "")


def _reset(name: str, one: Override) -> str:
    where = f' IN DATABASE "{one.database_name}"' if one.database_name else ""
    return f'ALTER ROLE "{one.role_name}"{where} RESET {name}'


def replication_finding(settings: dict[str, Setting], cluster: Cluster) -> Finding:
    """Judge whether a commit waits for standbys that are not there, or does not wait for those that are."""
    names = settings["synchronous_standby_names"].value.strip()
    waits = settings["synchronous_commit"].value in ("on", "remote_write", "remote_apply")
    connected = count(cluster.standbys, "standby", "standbys")
    if not names or not waits:
        if not cluster.standbys:
            return Finding("replication", "ok", "no standby is connected")
        remedy = "Name them in synchronous_standby_names, or accept that a failover loses the last commits (G1)."
        return Finding("replication", "warn", f"{connected}, for none of which a commit waits", remedy)
    counted = _SYNCHRONOUS.match(names)
    needed = int(counted[1]) if counted else 1
    asked = f"synchronous_standby_names = '{names}' asks for {needed}"
    if not cluster.may_see_standbys:
        remedy = "Have an administrator run GRANT pg_monitor TO this role, and ask again."
        return Finding("replication", "warn", f"{asked}; whether they are there this role can't see", remedy)
    if cluster.synchronous_standbys < needed:
        remedy = "Bring the standbys back, or take them out of synchronous_standby_names and reload."
        text = f"{asked}, {cluster.synchronous_standbys} of {connected} are synchronous: every save waits for ever"
        return Finding("replication", "problem", text, remedy)
    return Finding("replication", "ok", f"{connected}, {cluster.synchronous_standbys} of them synchronous; {asked}")


# -- limits


def timeouts_finding(settings: dict[str, Setting], server: Server) -> Finding:
    """Judge the timeouts that would cut off a save, or a tool's transaction."""
    short = [
        (name, int(settings[name].value), cut)
        for name, (least, cut) in _TIMEOUTS.items()
        if name in settings and 0 < int(settings[name].value) < least
    ]
    if not short:
        return Finding("timeouts", "ok", "none is so short that it cuts off a save or a tool")
    text = "; ".join(f"{name} of {milliseconds:,} ms can cut off {cut}" for name, milliseconds, cut in short)
    remedy = " ".join(f'ALTER ROLE "{server.role_name}" SET {name} = 0;' for name, _, _ in short)
    return Finding("timeouts", "warn", text, f"Run {remedy}")


def connections_finding(found: Examination, workers: int) -> Finding:
    """Judge how many connections are left, and whether workers' pools could take them all."""
    settings, cluster = found.settings, found.cluster
    reserved = ("superuser_reserved_connections", "reserved_connections")
    most = int(settings["max_connections"].value)
    most -= sum(int(settings[name].value) for name in reserved if name in settings)
    used = f"{cluster.connections:,} of {most:,} in use"
    remedy = "Connect through pgbouncer in transaction mode, or raise max_connections."
    if cluster.connections > _CROWDED * most:
        return Finding("connections", "warn", used, remedy)
    for whose, limit in (("database", cluster.database_limit), ("role", cluster.role_limit)):
        if limit is not None and 0 <= limit < max(workers, 1) * _CONNECTIONS:
            text = f"{used}; this {whose} may have {limit}, {_opened(workers)}"
            return Finding("connections", "warn", text, "Raise its CONNECTION LIMIT, or give workers a --pool-size.")
    if found.server.pooled:
        said = f"{used}, through a pooler: SHOW POOLS in its console says how many wait there"
        return Finding("connections", "ok", said)
    left = most - (cluster.connections - found.observed.connections)
    if workers * _CONNECTIONS > left:
        text = f"{used}, {left:,} left for this package; {_opened(workers)}"
        return Finding("connections", "warn", text, f"{remedy[:-1]}, or give workers a --pool-size.")
    return Finding("connections", "ok", used)


def _opened(workers: int) -> str:
    if workers < 2:
        return f"a worker opens up to {_CONNECTIONS}"
    return f"{workers} workers open up to {_CONNECTIONS} each"


def transactions_finding(cluster: Cluster, now: datetime) -> Finding:
    """Judge what transactions have left behind: prepared ones that hold locks, and ids that run out."""
    age = f"{cluster.transaction_age:,} of 2,147,483,647 transaction ids are not frozen yet"
    if cluster.transaction_age > _OLD_IDS:
        level = cluster.transaction_age > _VERY_OLD_IDS
        remedy = "Run VACUUM (FREEZE), and end what holds it up: old transactions, prepared ones, replication slots."
        return Finding(
            "transactions", "problem" if level else "warn", f"{age}: at the end nothing can be saved", remedy
        )
    if cluster.oldest_prepared is not None and now - cluster.oldest_prepared > _OLD_TRANSACTION:
        oldest = ago(cluster.oldest_prepared, now)
        text = f"{count(cluster.prepared, 'transaction')} prepared and not ended, the oldest {oldest}: locks are held"
        remedy = "See pg_prepared_xacts, then COMMIT PREPARED or ROLLBACK PREPARED each."
        return Finding("transactions", "warn", text, remedy)
    return Finding("transactions", "ok", age)
