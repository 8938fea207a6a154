"""The controller: elects leaders, writes the states of partitions, and sends these decisions to the brokers."""
