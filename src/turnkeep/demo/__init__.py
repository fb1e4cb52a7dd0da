"""`turnkeep demo`: twelve conversations written while their writer and their Postgres are killed, then checked.

Three parties. The *writer* plays the shipped conversations through the store, and is killed. Postgres is killed.
The *client*, which is the command itself, is never killed: it keeps a ledger outside the database of what was
intended and what was acknowledged, does the killing, and compares at the end.
"""
