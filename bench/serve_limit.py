"""`python -m bench.serve_limit DIRECTORY`: serve limit.pyx on a free port, which it prints, until it is killed."""

import socket
import sys

from bench.build import compiled

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        limit = compiled("limit")
        print(f"limit on {listener.getsockname()[1]}", flush=True)
        limit.run(listener.fileno(), sys.argv[1])
