"""Fixtures of the oracle tests: a bare listener in front of the slow plane."""

from tests.oracle.bench import bench as bench
