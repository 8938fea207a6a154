"""`pybroker top`: a live view of a cluster in a terminal.

reading (asks brokers)  ->  rates (two readings become a document)  ->  screen (shows it)  |  --json
"""
