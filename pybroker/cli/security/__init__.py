"""The commands for users, their ACLs, quotas and delegation tokens."""
