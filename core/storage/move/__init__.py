"""The move of a log to another log dir of its broker (KIP-113): it is copied, then takes the copy's place."""
