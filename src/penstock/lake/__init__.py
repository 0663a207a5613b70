"""The lake: a store's history as Parquet files that any engine reads, exact and checked.

    LAKE/recorded_day=2026-11-15/00000000000000000001-00000000000000266239.parquet    events by recorded day (UTC)
    LAKE/_penstock/manifest.json      the list of files, their contents, and the store they are from
    LAKE/_penstock/pending.json       the change under way; the next run finishes or undoes it
    LAKE/_penstock/aside/             temporary files, with names that readers ignore
    LAKE/_penstock/lock               the process that works on the lake

A file is named after its first and last position. Files have no gaps and no overlaps, up to the lake's head. The
manifest is replaced atomically, and is the only record of how far the lake is. docs/lake.md is the guide,
docs/decisions/0012-the-lake.md gives the reasons.
"""
