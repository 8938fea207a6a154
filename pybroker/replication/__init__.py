"""The replicas that this broker holds, and the directories they lie in."""
