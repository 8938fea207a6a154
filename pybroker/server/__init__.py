"""The broker as a whole: broker.py creates, starts and stops its parts, process.py and scheduler.py run it.

Packages: network (sockets, logins), api (requests), cluster (membership, the control plane), metrics.
"""
