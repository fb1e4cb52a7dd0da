"""Embeddings made in this process: small, without a server, without torch, without any download."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from turnkeep.errors import ConfigurationError

if TYPE_CHECKING:
    from turnkeep.store._vectors import Vector

LOCAL_MODEL: Final = "wordllama-l2-supercat-256"
LOCAL_DIMENSIONS: Final = 256

_INSTALL: Final = "local embeddings need the wordllama package: pip install 'turnkeep[local]'"
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_AT_ONCE: Final = 32  # texts that are padded to the longest of them
_LONGEST_TEXT: Final = 100_000  # characters; what comes after them hardly moves a mean


class LocalEmbeddings:
    """A provider of 256 dimensions: the mean of what the model `l2_supercat` of wordllama holds for each token.

    Good at topics and synonyms, blind to word order; 0.2 ms a text, in a thread. Only that package's files are read:
    nothing of it is run, written or downloaded. Raises `ConfigurationError` where it is not installed.
    """

    def __init__(self) -> None:
        self._folder = _folder()
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    @property
    def name(self) -> str:
        """The model's name, as it is stored with each vector."""
        return LOCAL_MODEL

    @property
    def dimensions(self) -> int:
        """256."""
        return LOCAL_DIMENSIONS

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[Vector]:
        """One vector for each text, in order. A query's is made as any other's."""
        return await asyncio.to_thread(self._embed, [*texts])

    def _embed(self, texts: list[str]) -> list[Vector]:
        weights, tokenizer = self._model()
        vectors: list[Vector] = []
        for start in range(0, len(texts), _AT_ONCE):
            # What isn't UTF-8 has no token.
            several = [
                text[:_LONGEST_TEXT].encode(errors="replace").decode() for text in texts[start : start + _AT_ONCE]
            ]
            for encoded in tokenizer.encode_batch_fast(several, add_special_tokens=False):
                vectors.append(weights[encoded.ids].mean(axis=0).tolist() if encoded.ids else [0.0] * LOCAL_DIMENSIONS)
        return vectors

    def _model(self) -> tuple[Any, Any]:
        with self._lock:
            if self._loaded is None:
                from safetensors.numpy import load_file
                from tokenizers import Tokenizer

                (weights,) = load_file(self._folder / _WEIGHTS).values()
                tokenizer = Tokenizer.from_file(str(self._folder / _TOKENIZER))
                tokenizer.no_padding()
                tokenizer.no_truncation()
                self._loaded = weights.astype("float32"), tokenizer
            return self._loaded


def _folder() -> Path:
    """Where wordllama is. It is not imported: it would set up logging, and look for a home directory."""
    for needed in ("wordllama", "safetensors", "tokenizers", "numpy"):
        found = importlib.util.find_spec(needed)
        if found is None:
            raise ConfigurationError(_INSTALL)
        if needed == "wordllama":
            folder = Path(next(iter(found.submodule_search_locations or [""])))
    for file in (_WEIGHTS, _TOKENIZER):
        if not (folder / file).is_file():
            raise ConfigurationError(f"this release of wordllama has no {file}: pip install 'wordllama==0.4.0.post1'")
    return folder
