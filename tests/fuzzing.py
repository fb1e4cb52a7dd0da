"""How many examples the tests with made-up input try: few by default, FUZZ_EXAMPLES of them in a long run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings


def examples(few: int) -> Callable[[Any], Any]:
    """Try so many examples, or as many as FUZZ_EXAMPLES says."""
    return settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", few)), deadline=None, suppress_health_check=list(HealthCheck)
    )
