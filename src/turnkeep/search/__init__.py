"""Search over all conversations: documents, the worker that fills them, providers of embeddings, and what is found."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeep.search.documents import FillReport, fill_documents
    from turnkeep.search.hits import Hit, NotIndexed, SearchResult
    from turnkeep.search.local import LocalEmbeddings
    from turnkeep.search.openai import OpenAIEmbeddings
    from turnkeep.search.provider import Provider
    from turnkeep.search.search import Search
    from turnkeep.search.settings import provider_from_settings
    from turnkeep.search.worker import EmbedWorker, Progress
    from turnkeep.store._vector_index import build_index, drop_unused_indexes

__all__ = [
    "EmbedWorker",
    "FillReport",
    "Hit",
    "LocalEmbeddings",
    "NotIndexed",
    "OpenAIEmbeddings",
    "Progress",
    "Provider",
    "Search",
    "SearchResult",
    "build_index",
    "drop_unused_indexes",
    "fill_documents",
    "provider_from_settings",
]

_LATER = {
    "EmbedWorker": "search.worker",
    "FillReport": "search.documents",
    "Hit": "search.hits",
    "LocalEmbeddings": "search.local",
    "NotIndexed": "store._searching",
    "OpenAIEmbeddings": "search.openai",
    "Progress": "search.worker",
    "Provider": "search.provider",
    "Search": "search.search",
    "SearchResult": "search.hits",
    "build_index": "store._vector_index",
    "drop_unused_indexes": "store._vector_index",
    "fill_documents": "search.documents",
    "provider_from_settings": "search.settings",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is first asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(f"turnkeep.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
