"""Search over all conversations: documents, the worker that fills them, providers of embeddings."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeep.search.provider import Provider

__all__ = ["Provider"]

_LATER = {"Provider": "provider"}


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is first asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(f"turnkeep.search.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
