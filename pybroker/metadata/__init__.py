"""Reads and writes the store: nodes, topics, settings, users, ACLs, tokens, ids.

Only a lone broker uses `registration.py`, `directory_assignments.py`, `adoption.py`, `topic_nodes.py`, and `loading.py`
(except `prepare`). Commands use `migration.py` and `users.py`. Every broker uses the other modules.
"""
