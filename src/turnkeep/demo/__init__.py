"""`turnkeep demo`: twelve agents at work while model server, worker and Postgres are killed, then the count.

Four parties. The *model server* answers by the shipped conversations, the *worker* runs the agents and their tools,
Postgres keeps everything: all three are killed. The *client*, which is the command itself, is never killed: it posts
the users' messages, keeps a ledger outside the database of what was acknowledged, does the killing, and compares at
the end with a run that nobody disturbed.
"""
