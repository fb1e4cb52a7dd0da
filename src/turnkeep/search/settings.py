"""Which provider of embeddings is meant: an argument, then the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from turnkeep.errors import ConfigurationError

if TYPE_CHECKING:
    from turnkeep.search.provider import Provider

LOCAL = "local"
NONE = "none"


def provider_from_settings(
    embeddings: str | None = None,
    model: str | None = None,
    dimensions: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Provider | None:
    """The provider that is meant, or None where none is.

    `embeddings` is `local`, the address of a server with its `/v1`, or `none`; if not given, TURNKEEP_EMBEDDINGS says
    it. A server also needs `model`, or TURNKEEP_EMBEDDINGS_MODEL; its key is TURNKEEP_EMBEDDINGS_API_KEY, and
    OPENAI_API_KEY without that. `dimensions`, or TURNKEEP_EMBEDDINGS_DIMENSIONS, asks it for shorter vectors. Raises
    `ConfigurationError` for what can't be, or where a package is missing.
    """
    named = embeddings or environ.get("TURNKEEP_EMBEDDINGS") or NONE
    if named == NONE:
        return None
    if named == LOCAL:
        from turnkeep.search.local import LocalEmbeddings

        return LocalEmbeddings()
    if not named.startswith(("http://", "https://")):
        raise ConfigurationError(f"embeddings {named!r}: neither {LOCAL}, {NONE} nor a server's http address")
    model = model or environ.get("TURNKEEP_EMBEDDINGS_MODEL")
    if not model:
        raise ConfigurationError(f"embeddings {named!r}: which model? Set TURNKEEP_EMBEDDINGS_MODEL")
    from turnkeep.search.openai import OpenAIEmbeddings

    return OpenAIEmbeddings(
        model,
        base_url=named,
        api_key=environ.get("TURNKEEP_EMBEDDINGS_API_KEY") or environ.get("OPENAI_API_KEY"),
        dimensions=dimensions or _dimensions(environ),
    )


def _dimensions(environ: Mapping[str, str]) -> int | None:
    text = environ.get("TURNKEEP_EMBEDDINGS_DIMENSIONS")
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigurationError(f"TURNKEEP_EMBEDDINGS_DIMENSIONS: {text!r} is no number of dimensions")
    return int(text) if text else None
