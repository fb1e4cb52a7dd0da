"""What an archive holds of a conversation: lines of the export format, compressed. Pure."""

from __future__ import annotations

import hashlib
import lzma
import uuid
from collections.abc import Mapping
from io import BytesIO
from typing import Any, BinaryIO, Final, cast

from turnkeep.errors import CorruptionError, TransferError

MAX_PAYLOAD_BYTES: Final = 1_000_000_000
"""Postgres holds less than 1 GiB in a value, and none is sent that comes near it."""

# What there is of the first bytes is packed as well as can be; a huge rest in a quarter of the time.
_WELL: Final = 8 * 1024 * 1024
_PRESETS: Final = (6, 1)


class Packer:
    """Compresses lines as they come: an xz file."""

    def __init__(self, conversation: uuid.UUID) -> None:
        self._conversation = conversation
        self._packed: list[bytes] = []
        self._bytes = 0
        self._xz = _compressor(_PRESETS[0])
        self._fast = False
        self.raw_bytes = 0

    def add(self, lines: bytes) -> None:
        """Take in lines. Raises `TransferError` where it becomes too large for a row."""
        if self.raw_bytes > _WELL and not self._fast:
            self._fast = True
            self._keep(self._xz.flush())
            self._xz = _compressor(_PRESETS[1])  # a further stream of the same file
        self.raw_bytes += len(lines)
        self._keep(self._xz.compress(lines))

    def payload(self) -> bytes:
        """All of it."""
        self._keep(self._xz.flush())
        return b"".join(self._packed)

    def _keep(self, packed: bytes) -> None:
        self._bytes += len(packed)
        if self._bytes > MAX_PAYLOAD_BYTES:
            raise TransferError(
                f"conversation {self._conversation} takes more than {MAX_PAYLOAD_BYTES:,} bytes compressed, which "
                "is too much for a row; nothing was changed: export it to a file instead"
            )
        self._packed.append(packed)


def _compressor(preset: int) -> lzma.LZMACompressor:
    # Text has no use for positions (pb), and some for one more bit of the byte before (lc).
    filters: list[Mapping[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": preset, "lc": 4, "lp": 0, "pb": 0}]
    return lzma.LZMACompressor(lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=filters)


def unpacked(conversation: uuid.UUID, digest: bytes, payload: bytes) -> BinaryIO:
    """The lines again. Raises `CorruptionError` where the payload is not what was stored."""
    if hashlib.sha256(payload).digest() != digest:
        raise CorruptionError(
            f"the archive of conversation {conversation} is damaged: its digest is another one than was stored; "
            "nothing was changed. A backup has it as it was"
        )
    return cast("BinaryIO", lzma.open(BytesIO(payload)))
