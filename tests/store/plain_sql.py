"""What is done without the library: a connection of its own, and psql."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import psycopg

from turnkeep.embedded._programs import find_wheel

PSQL = find_wheel() / "bin" / "psql"


def connect(dsn: str) -> psycopg.Connection[Any]:
    """A connection that finds the views by their bare names."""
    return psycopg.connect(dsn, autocommit=True, options="-c search_path=turnkeep,public")


def psql(dsn: str, script: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with psql, which stops at the first error, and give what it printed."""
    settings = [part for name, value in variables.items() for part in ("-v", f"{name}={value}")]
    return subprocess.run(
        [PSQL, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *settings, *options, "-d", dsn],
        input=script,
        env={**os.environ, "PGCLIENTENCODING": "UTF8"},
        capture_output=True,
        text=True,
    )
