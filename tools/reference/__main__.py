"""Write the pages, or with `--check` say which are not current.

The page about SQL needs a migrated database: it is written here too, and checked by a test that has one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference import cli, errors, python, settings, sql

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "python.md": python.text,
    "cli.md": cli.text,
    "settings.md": settings.text,
    "errors.md": errors.text,
}


def main() -> None:
    """Write the pages, or say which are not current."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not current")
    check: bool = parser.parse_args().check
    try:
        texts = {FOLDER / name: text() for name, text in PAGES.items()}
        if not check:
            with sql.database() as conninfo:
                texts[FOLDER / "sql.md"] = sql.text(conninfo)
    except LookupError as error:
        sys.exit(f"not documented: {error.args[0]}")
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check and stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"not current: {names}. Run python -m tools.reference")
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")


if __name__ == "__main__":
    main()
