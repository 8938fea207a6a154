"""The record batch, magic 2: checks, stamps, iterators and builders; codecs and hashes."""
