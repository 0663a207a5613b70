"""Penstock under other people's libraries. Each has an extra of its own name: `pip install penstock[eventsourcing]`."""
