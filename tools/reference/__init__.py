"""The pages of docs/reference, written from the code they describe: `python -m tools.reference`, or `--check`."""
