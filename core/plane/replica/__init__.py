"""Followers: fetching partitions from their leaders."""
