"""What a producer builds its requests from, and a generator of load."""
