"""Search over all conversations: documents, the worker that fills them, providers of embeddings."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeep.search.documents import FillReport, fill_documents
    from turnkeep.search.provider import Provider

__all__ = ["FillReport", "Provider", "fill_documents"]

_LATER = {
    "FillReport": "documents",
    "Provider": "provider",
    "fill_documents": "documents",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is first asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(f"turnkeep.search.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
