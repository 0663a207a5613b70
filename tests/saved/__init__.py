"""Stores, backups, lakes and pipeline projects as older versions left them, opened by today's code.

Each numbered folder is what one version wrote, and what it read from it: streams, sealed blocks, queues with dead
letters, subscriptions, producers, logs and iterators with outputs, staged units, builds, erasures finished and open.

    penstock.db.xz, expected.json       a SQLite store
    postgres.sql.xz, postgres.json      the same on PostgreSQL, dumped
    backup.tar.xz                       a full backup of the SQLite store and an incremental one: a folder, and a .tar
    lake.tar.xz                         its lake, compacted once and behind the store
    project.tar.xz                      a pipeline on it, after a run and behind the store
    copies.json                         how far these are

Folder 0001 has a SQLite store only, 0002 has stores only. `python -m tests.saved.make` writes a new folder; no folder
ever changes.
"""
