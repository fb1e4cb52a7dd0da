"""Search over all conversations: documents, the worker that fills them, providers of embeddings."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeep.search.documents import FillReport, fill_documents
    from turnkeep.search.provider import Provider
    from turnkeep.search.worker import EmbedWorker, Progress

__all__ = ["EmbedWorker", "FillReport", "Progress", "Provider", "fill_documents"]

_LATER = {
    "EmbedWorker": "worker",
    "FillReport": "documents",
    "Progress": "worker",
    "Provider": "provider",
    "fill_documents": "documents",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is first asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(f"turnkeep.search.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
