"""`pybroker debug`: what a report about a problem of a cluster needs, as one file."""
