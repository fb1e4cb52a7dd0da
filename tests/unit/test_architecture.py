"""Imports go one way, `import turnkeep` stays light, and the public names are the ones below."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import turnkeep

PACKAGE = Path(turnkeep.__file__).parent

# What each layer may import, beside itself.
PURE = {"errors", "model", "jsontext", "redaction", "settings", "spans", "transfer", "_version"}
ALLOWED = {
    "_version": set(),
    "errors": {"model"},  # for type checking only
    "jsontext": {"errors", "_jsonreader"},
    "_jsonreader": {"errors", "jsontext"},
    "model": {"errors", "jsontext"},
    "redaction": {"errors"},
    "settings": {"errors"},
    "spans": {"jsontext"},
    "transfer": {"errors", "_transfer_checks"},
    "_transfer_checks": {"errors", "jsontext", "spans"},
    "embedded": {"errors"},
    "store": PURE | {"embedded"},
    "runner": PURE | {"store"},
    "search": PURE | {"store", "runner"},
    "imports": PURE | {"store"},
    "testing": PURE | {"embedded", "store", "runner"},
    "demo": PURE | {"embedded", "store", "runner", "testing"},
    "cli": PURE | {"embedded", "store", "runner", "search", "imports", "demo"},
    "__main__": {"cli"},
    "__init__": PURE | {"store", "runner"},
}

PUBLIC = {
    "Agent", "ArchivedConversation", "Archiving", "AsyncBranch", "AsyncStore", "AsyncTransaction", "Branch",
    "BranchSummary", "Checkpoint", "CheckpointSummary", "ConfigurationError", "ConflictError", "Conversation",
    "conversation_uuid", "ConversationArchivedError", "ConversationEndedError", "ConversationSummary",
    "CorruptionError", "DatabaseError", "EmbeddedError", "Erased", "Expired", "InvalidInputError", "KeyReusedError",
    "Lease",
    "LeaseError", "LeaseHeldError", "LeaseLostError", "migrate", "NotFoundError", "open", "open_sync", "PendingCall",
    "PendingCallsError", "PermissionDeniedError", "PoolExhaustedError", "Posted", "Pruned", "RawJSON",
    "RedactionError", "Reply",
    "ReplyTimeoutError", "Saved", "SchemaError", "Store", "tool", "ToolContext", "Transaction", "TransferError",
    "Transferred", "TurnFailedError", "TurnkeepError", "TurnNotOpenError", "TurnOpenError", "UnavailableError",
    "UncertainOutcomeError", "UNCHANGED", "UnknownToolCallError", "UnreadableError", "UnstorableError", "UsageError",
    "Worker",
}  # fmt: skip


def _layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module == "turnkeep":
            names = [f"turnkeep.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("turnkeep.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    layer = _layer(path)
    assert _imported_layers(path) - {layer} <= ALLOWED[layer]


def test_only_the_store_speaks_sql() -> None:
    speaking = {
        _layer(path)
        for path in PACKAGE.rglob("*.py")
        if any(verb in path.read_text() for verb in ("SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM"))
    }
    assert speaking <= {"store", "embedded", "demo", "testing"}


def test_the_public_names_are_these_and_no_more() -> None:
    assert set(turnkeep.__all__) == PUBLIC
    assert all(hasattr(turnkeep, name) for name in PUBLIC)


def test_importing_turnkeep_loads_nothing_heavy() -> None:
    code = "import sys, turnkeep; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"typer", "click", "rich", "starlette", "openai", "pydantic", "numpy"} & set(loaded)
    assert not {"turnkeep.store._sync_store", "turnkeep.store._migrate", "turnkeep.runner"} & set(loaded)
