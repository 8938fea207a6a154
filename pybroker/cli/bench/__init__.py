"""`pybroker bench`: workloads for a broker, and how fast it executes them."""
