"""Events to and from files (docs/import-export.md), and replays (docs/replay.md)."""
