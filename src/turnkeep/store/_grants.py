"""What a role may do in a schema: the rights of a reader and of a writer, given and taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, LiteralString

from psycopg import sql

from turnkeep.errors import InvalidInputError, SchemaError
from turnkeep.settings import check_schema_name
from turnkeep.store._migrate import Connection, transaction

Kind = Literal["reader", "writer"]

_LONGEST = 63  # bytes of a name; Postgres cuts what is longer, and would mean another role
_TABLES: dict[Kind, LiteralString] = {"reader": "SELECT", "writer": "SELECT, INSERT, UPDATE, DELETE"}
_SEQUENCES: dict[Kind, LiteralString] = {"reader": "SELECT", "writer": "SELECT, USAGE, UPDATE"}


@dataclass(frozen=True)
class Change:
    """The statements that give a role its rights, or take them back. `missing` says that the role is not there yet."""

    role: str
    kind: Kind
    statements: tuple[str, ...]
    missing: bool


def grant(
    conninfo: str,
    schema: str,
    role: str,
    kind: Kind,
    *,
    create: bool = False,
    revoke: bool = False,
    dry_run: bool = False,
    timeout: float = 60.0,
) -> Change:
    """Give a role the rights of a reader or a writer, in one transaction: all of them or none; again is harmless.

    They hold for what later releases add, too: by default privileges of the role that owns the tables. With `create`
    the role is made where it is missing, with LOGIN and without a password. With `revoke` they are taken back. With
    `dry_run` nothing is changed. Raises `InvalidInputError` for a role that is not there or can't be named so,
    `SchemaError` where there is no schema, and `PermissionDeniedError`.
    """
    check_schema_name(schema)
    _check_role(role)
    with transaction(conninfo, schema, timeout) as connection:
        missing = connection.execute("SELECT FROM pg_catalog.pg_roles WHERE rolname = %s", (role,)).fetchone() is None
        if missing and not (create and not revoke):
            add = "" if revoke else ": --create makes it, or an administrator does"
            raise InvalidInputError(f"there is no role {role!r}{add}")
        owner = _owner(connection, schema)
        statements = [sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role))] if missing else []
        statements += _statements(connection, schema, role, kind, owner, revoke=revoke)
        if not dry_run:
            for statement in statements:
                connection.execute(statement)
    return Change(role, kind, tuple(f"{statement.as_string(None)};" for statement in statements), missing)


def _check_role(role: str) -> None:
    if not role or "\0" in role or len(role.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise InvalidInputError(f"a role's name has 1 to {_LONGEST} bytes and no NUL: {role!r}")
    if role in ("public", "none") or role.startswith("pg_"):
        raise InvalidInputError(f"{role!r} can't be a role of yours: name one that logs in, or a group of them")


def _owner(connection: Connection, schema: str) -> str:
    """Who owns the tables, and will own those of later releases."""
    row = connection.execute(
        "SELECT pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'checkpoint'",
        (schema,),
    ).fetchone()
    if row is None:
        raise SchemaError(f"there is no schema {schema!r} here: `turnkeep init` makes it")
    return str(row[0])


def _statements(
    connection: Connection, schema: str, role: str, kind: Kind, owner: str, *, revoke: bool
) -> list[sql.Composed]:
    names = {
        "schema": sql.Identifier(schema),
        "role": sql.Identifier(role),
        "owner": sql.Identifier(owner),
        "migration": sql.Identifier(schema, "migration"),
        "tables": sql.SQL(_TABLES[kind]),
        "sequences": sql.SQL(_SEQUENCES[kind]),
        "functions": _functions(connection, schema, kind),
    }
    give, to = ("REVOKE", "FROM") if revoke else ("GRANT", "TO")
    default = "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} "
    wanted: list[LiteralString] = [
        "USAGE ON SCHEMA {schema}",
        "{tables} ON ALL TABLES IN SCHEMA {schema}",
        "{sequences} ON ALL SEQUENCES IN SCHEMA {schema}",
        "EXECUTE ON FUNCTION {functions}",
    ]
    later: list[LiteralString] = ["{tables} ON TABLES", "{sequences} ON SEQUENCES"]
    if kind == "writer":
        later.append("EXECUTE ON FUNCTIONS")
    texts = [f"{give} {what} {to} {{role}}" for what in wanted]
    if kind == "writer" and not revoke:
        texts.append("REVOKE INSERT, UPDATE, DELETE ON {migration} FROM {role}")
    texts += [f"{default}{give} {what} {to} {{role}}" for what in later]
    statements = [sql.SQL(text).format(**names) for text in texts]
    return statements if revoke else [*statements, *_vector_usage(connection, role)]


def _functions(connection: Connection, schema: str, kind: Kind) -> sql.Composable:
    """The functions of a schema that a role calls, as they are told apart. A reader's are those that views are made of:
    none of them writes. They are named also where everybody may call them, which an administrator can have ended."""
    rows = connection.execute(
        "SELECT p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid) FROM pg_catalog.pg_proc AS p"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace"
        " WHERE n.nspname = %s AND p.prokind = 'f' AND (%s OR p.provolatile <> 'v' OR p.proname = 'clock')"
        " ORDER BY 1, 2",
        (schema, kind == "writer"),
    ).fetchall()
    # The arguments are as Postgres itself writes them.
    named = [sql.SQL("{}({})").format(sql.Identifier(schema, name), sql.SQL(arguments)) for name, arguments in rows]
    return sql.SQL(", ").join(named)


def _vector_usage(connection: Connection, role: str) -> list[sql.Composed]:
    """The right to use the schema that pgvector lives in, where not everybody has it."""
    rows = connection.execute(
        "SELECT n.nspname FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector' AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(coalesce(n.nspacl,"
        " pg_catalog.acldefault('n', n.nspowner))) AS a WHERE a.grantee = 0 AND a.privilege_type = 'USAGE')"
    ).fetchall()
    return [
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(name), sql.Identifier(role)) for (name,) in rows
    ]
