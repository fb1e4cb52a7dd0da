"""Run a keeper: `python .../turnkeep/embedded/__main__.py keep DIRECTORY PROGRAMS`. Not for people."""

import sys
import types
from pathlib import Path

if "turnkeep" not in sys.modules:
    # A keeper needs this package and `turnkeep.errors`, and must stay small: the bare package stands in
    # for turnkeep's own __init__, which loads the database driver, and no site-packages are needed.
    bare = types.ModuleType("turnkeep")
    bare.__path__ = [str(Path(__file__).parent.parent)]
    sys.modules["turnkeep"] = bare

from turnkeep.embedded._keeper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
