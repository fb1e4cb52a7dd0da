"""The command `turnkeep`: parse, call, print. A module a command, and nothing heavy loaded before one runs."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process, and exit with its code."""
    try:
        from turnkeep.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
