"""Conversations of other programs, read and never run: each becomes an export of Turnkeep's, which is then imported."""
