"""`pybroker metrics`: boards for Grafana, and rules for Prometheus."""
