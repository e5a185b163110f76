"""The worker compared with other queues in one run: `make bench-peers`, or `python -m benchmarks.peers --help`."""
