"""The elected broker's work: take the controllership, write topics, load the cluster's image."""
