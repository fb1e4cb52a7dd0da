"""The page about settings: what each means stands here, names, defaults and limits are read from the code.

A keyword, or a variable in the source, that nothing is said about here is an error.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping

import griffe

from tools.reference import python
from tools.reference.markdown import anchor, page, table

_INTRODUCTION = """\
There is no configuration file and nothing global: settings are keywords of what you make, options of [the command
line](cli.md), and these environment variables. What is given as an argument wins over the environment."""

ENVIRONMENT = {
    "TURNKEEP_DATABASE_URL": "The database: a DSN (`postgresql://…` or a libpq string), or the word `embedded` for a "
    "[private Postgres](../how-to/embedded.md).",
    "DATABASE_URL": "The same, where `TURNKEEP_DATABASE_URL` is not set.",
    "PGHOST": "One of these six names the database where neither of the above is set; what the others leave out, "
    "libpq adds "
    "(`PGPASSWORD`, `PGSSLMODE`, `~/.pgpass` and its like).",
    "PGHOSTADDR": "As `PGHOST`.",
    "PGPORT": "As `PGHOST`.",
    "PGDATABASE": "As `PGHOST`.",
    "PGUSER": "As `PGHOST`.",
    "PGSERVICE": "As `PGHOST`.",
    "TURNKEEP_EMBEDDED_DIR": "The directory of the private Postgres. Otherwise `/var/lib/turnkeep/embedded` for "
    "root, and for "
    "others `turnkeep/embedded` in `XDG_DATA_HOME`.",
    "XDG_DATA_HOME": "An absolute path; `~/.local/share` where it is none.",
    "OPENAI_BASE_URL": "The model server of agents that name none; without it they go to OpenAI's own.",
    "OPENAI_API_KEY": "The key of agents that have none. Many servers of one's own want no key.",
    "TURNKEEP_EMBEDDINGS": "What makes embeddings for the command line: `local`, the address of a server with its "
    "`/v1`, or `none`, as without it. See [search](../how-to/search.md).",
    "TURNKEEP_EMBEDDINGS_MODEL": "The server's model; `local` has one of its own.",
    "TURNKEEP_EMBEDDINGS_API_KEY": "The server's key; `OPENAI_API_KEY` where it is not set.",
    "TURNKEEP_EMBEDDINGS_DIMENSIONS": "Asks the server for vectors of so many dimensions, where its model can shorten "
    "them.",
    "NO_COLOR": "Anything but the empty text: the command line prints without colours.",
}
# What the source names in capitals as well, and does not ask the caller's environment for.
OTHER_CAPITALS = frozenset(
    {"DYLD_LIBRARY_PATH", "LC_ALL", "LD_LIBRARY_PATH", "MAX_DEPTH", "MAX_MESSAGE_BYTES", "PG_VERSION"}
)

KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "open": {
        "database": "A DSN or `embedded`; the environment names one if not given.",
        "schema": "The schema: 1 to 63 bytes, without `$$`, not beginning with `pg_`.",
        "pool_size": "The most connections it opens, from 1. Each transaction of yours, and each transactional tool "
        "that runs, "
        "holds one; the last is kept for the store's own calls.",
        "timeout": "Seconds after which any call gives up, tries included.",
        "redact": "What gives each value as it is to be stored: see [redaction](../how-to/redact.md).",
    },
    "migrate": {
        "conninfo": "A DSN.",
        "schema": "As for `open`.",
        "dimensions": "Of the embeddings that the schema holds, 1 to 16,000: 768 in a new one, else as many as it has. "
        "Another number than it has drops all embeddings, to be made anew.",
        "timeout": "Seconds, for connecting and for each lock that somebody else holds.",
    },
    "Agent": {
        "name": "The `agent_id` of the conversations it serves: 1 to 255 characters.",
        "model": "The model's name on its server.",
        "base_url": "The server; `OPENAI_BASE_URL` if not given, and OpenAI's own without that.",
        "api_key": "Its key; `OPENAI_API_KEY` if not given.",
        "instructions": "What comes first in every request.",
        "tools": "The tools that the model may call.",
        "max_steps": "The most inferences of one turn, from 1. Then the turn fails, and can be resumed.",
        "options": "What goes to the server with every request: `temperature`, `max_tokens`, `extra_body`, …",
        "timeout": "Seconds of silence after which the server counts as gone.",
    },
    "tool": {
        "idempotent": "It may run again after a crash, under the same idempotency key.",
        "transactional": "Its effects commit with its result; after a crash it runs again if they did not.",
        "on_crash": 'What happens after a crash in the middle: `"rerun"`, `"report"` (the outcome is unknown, and '
        "the model is "
        'told so: what an undeclared tool does), `"ask"` (a person answers).',
        "name": "What the model calls it: 1 to 64 characters of `a-z A-Z 0-9 _ -`; the function's name if not given.",
        "description": "What the model is told; the docstring if not given.",
    },
    "Worker": {
        "store": "An open store.",
        "agents": "Those it serves.",
        "concurrency": "The most branches it drives at once, from 1.",
        "lease_seconds": "After a crash, others take up its branches after this. Renewed at a third, and by every "
        "save.",
        "poll_seconds": "It looks for work about this often.",
        "grace_seconds": "Told to stop, it waits so long for tools that run.",
        "owner": "Its name in leases, for people: 1 to 200 characters; host and process id if not given.",
    },
}
# Parameters that are no settings.
_NO_SETTINGS = {"tool": {"function"}}

LIMITS = {
    "turnkeep.jsontext:MAX_MESSAGE_BYTES": "bytes of a message, or of another single value, as JSON in UTF-8",
    "turnkeep.store._writes:MAX_LIST_CHARACTERS": "characters of all messages, calls or results of one save",
    "turnkeep.spans:MAX_PARTS": "pieces of the list before, and new ones between them, in a list given to `save_all`; "
    "one of more is stored anew, whole",
    "turnkeep.transfer:MAX_LINE_BYTES": "bytes of a line of an export",
    "turnkeep.store._payload:MAX_PAYLOAD_BYTES": "bytes of an archived conversation, compressed",
    "turnkeep._jsonreader:MAX_DEPTH": "arrays and objects nested in one another",
    "turnkeep.model:_MAX_ID_CHARACTERS": "characters of a conversation's own id",
    "turnkeep.store._arguments:_MAX_KEY_CHARACTERS": "characters of an idempotency key",
    "turnkeep.store._details:_MAX_NAME_CHARACTERS": "characters of an `agent_id`, a tag, a branch's or a tenant's name",
    "turnkeep.store._details:_MAX_TITLE_CHARACTERS": "characters of a title",
    "turnkeep.store._details:_MAX_TAGS": "tags of a conversation",
    "turnkeep.store._details:_MAX_METADATA_BYTES": "bytes of one update of metadata, as JSON in UTF-8",
    "turnkeep.store._async_leases:_MAX_OWNER_CHARACTERS": "characters of a lease's owner",
    "turnkeep.store._arguments:_LONGEST_LEASE": "seconds of a lease, or of a delay",
    "turnkeep.store._arguments:MAX_PAGE": "conversations or checkpoints in one page of a list",
}
_LIMIT = re.compile(r"^(_?MAX_\w+|_LONGEST_LEASE)(?:: Final)? = ", re.MULTILINE)

_LIMITS = """\
Beyond a limit a call is refused with `InvalidInputError` or `UnstorableError`, before anything else happens. Views
show a single value of up to 16 MB, and messages of up to 64 MB in one row; beyond that
`{"turnkeep_unrepresentable": reason}` stands in its place, and the [exact text](../how-to/plain-sql.md) in its
table."""

_CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|PG[A-Z]+|__[A-Z_]+__")


def text() -> str:
    """The page. Raises `LookupError` for what nothing is said about."""
    _check("environment variable", variables() - OTHER_CAPITALS, set(ENVIRONMENT) - {"OPENAI_BASE_URL"})  # the client's
    _check("limit", limits(), set(LIMITS))
    environment = table(("variable", "meaning"), ((f"`{name}`", words) for name, words in ENVIRONMENT.items()))
    keywords = [f"### `{name}`\n\n{_told_at(name)}\n\n{_keywords(name)}" for name in KEYWORDS]
    most = table(("at most", "of what"), ((_limit(path), words) for path, words in LIMITS.items()))
    return page(
        "Settings", _INTRODUCTION, "## Environment variables", environment,
        "## Keywords", *keywords, "## Limits", _LIMITS, most,
    )  # fmt: skip


def variables() -> set[str]:
    """Everything in the source that may be the name of an environment variable."""
    found = set()
    for path in (python.SOURCE / "turnkeep").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CAPITALS.fullmatch(node.value):
                found.add(node.value)
    return {name for name in found if not name.startswith("__")}


def limits() -> set[str]:
    """The limits on what the store takes, as module:name."""
    package = python.SOURCE / "turnkeep"
    paths = [*package.glob("*.py"), *(one for one in package.glob("store/*.py") if "_sync_" not in one.name)]
    modules = {path: ".".join(path.relative_to(python.SOURCE).with_suffix("").parts) for path in paths}
    return {
        f"{module}:{name}"
        for path, module in modules.items()
        for name in _LIMIT.findall(path.read_text(encoding="utf-8"))
    }


def parameters(name: str) -> dict[str, str]:
    """The parameters of a public function or class, or the fields of a dataclass, with their defaults."""
    found = python.public()[name]
    if isinstance(found, griffe.Class) and "dataclass" not in found.labels:
        found = found["__init__"]
    if isinstance(found, griffe.Function):
        pairs = [(one.name, one.default) for one in found.parameters if one.name != "self"]
        return {key: "" if value is None else f"`{python.value(value)}`" for key, value in pairs}
    return {row.name: python.default(row.value) for row in python.fields(found)}


def _told_at(name: str) -> str:
    twin = "; `turnkeep.open_sync` takes the same" if name == "open" else ""
    return f"[`turnkeep.{name}`](python.md#{anchor(name)}){twin}."


def _keywords(name: str) -> str:
    there = {key: value for key, value in parameters(name).items() if key not in _NO_SETTINGS.get(name, ())}
    _check(f"keyword of {name}", set(there), set(KEYWORDS[name]))
    return table(
        ("keyword", "default", "meaning"), ((f"`{k}`", there[k], words) for k, words in KEYWORDS[name].items())
    )


def _check(kind: str, there: set[str], told: set[str]) -> None:
    if missing := sorted(there - told):
        raise LookupError(f"{kind} {missing[0]!r}: say in tools/reference/settings.py what it means")
    if gone := sorted(told - there):
        raise LookupError(f"{kind} {gone[0]!r} is not there any more: remove it from tools/reference/settings.py")


def _limit(path: str) -> str:
    module, name = path.split(":")
    return f"{getattr(importlib.import_module(module), name):,.0f}"
