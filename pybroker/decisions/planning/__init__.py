"""Plans which replicas move to which brokers: snapshot and goals in, a plan out (planner.py)."""
