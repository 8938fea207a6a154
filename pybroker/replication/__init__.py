"""The replicas of this broker, and its log dirs."""
