"""Decisions and the state they need, without I/O: clock and randomness are arguments.

Functions decide (election, isr, rebalance, placement ...). State is the metadata cache and its image, topic settings
and the latest changes. Values are orders, callers and topics.
"""
