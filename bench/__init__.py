"""Benchmarks: `python -m bench` prints figures, and as its last line a summary."""
