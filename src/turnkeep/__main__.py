"""`python -m turnkeep`: the same as the command `turnkeep`."""

from turnkeep.cli import main

main()
