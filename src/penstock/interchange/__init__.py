"""Events to and from files (docs/import-export.md), and replays (docs/replay.md).

Import the modules: commands that only show their help need the names of the formats, and no store.
"""
