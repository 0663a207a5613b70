"""Penstock under other libraries. Each has an extra of its name: `pip install penstock[eventsourcing]`."""
