"""Penstock against what a user would pick instead: `make bench-peers`, or `python -m bench.peers --help`."""
