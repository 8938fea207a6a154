"""Sockets, listeners, TLS and logins of clients, and the limits of connections."""
