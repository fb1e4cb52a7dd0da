"""Coverage-guided fuzzing of exact JSON text: `python -m fuzz.jsontext [libFuzzer's options] [files]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["turnkeep.jsontext", "turnkeep._jsonreader"]):
    from tests.jsontext_laws import check_text


def check_bytes(data: bytes) -> None:
    """Take bytes for text, in one of three ways that the first of them chooses."""
    encodings = (("utf-8", "surrogateescape"), ("utf-16-le", "surrogatepass"), ("latin-1", "strict"))
    encoding, errors = encodings[data[0] % 8 % 3] if data else encodings[0]
    data = data[1:] if encoding != "utf-16-le" else data[1 : 1 + (len(data) - 1) // 2 * 2]
    check_text(data.decode(encoding, errors))


if __name__ == "__main__":
    atheris.Setup(sys.argv, check_bytes)
    atheris.Fuzz()
