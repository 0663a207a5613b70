"""The history as a table, read in ranges of positions: from a store itself, or through a server."""
