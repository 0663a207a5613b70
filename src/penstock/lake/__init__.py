"""The lake: a store's history as Parquet files that any engine reads, exact and checked.

    LAKE/recorded_day=2026-11-15/00000000000000000001-00000000000000266239.parquet    events by recorded day (UTC)
    LAKE/_penstock/manifest.json      which files there are, what is in them, and of which store
    LAKE/_penstock/pending.json       what is under way; the next run finishes it or takes it back
    LAKE/_penstock/aside/             files that are being written; none has a name that readers look for
    LAKE/_penstock/lock               who is at work

A file is named after its positions, first and last. Files never overlap and leave nothing out: the end of one is the
beginning of the next, up to the lake's head. The manifest is replaced in one step, and is the lake's only memory of how
far it is. docs/lake.md is for those who use it, docs/decisions/0012-the-lake.md says why it is as it is.
"""
