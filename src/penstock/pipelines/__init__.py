"""Pipelines: Spark Declarative Pipelines on a Penstock. docs/pipelines.md is the guide.

This package makes a project from a sample of the history, runs, checks and watches it. Functions for transformations
are here and in `penstock.spark.pipelines`. It needs `penstock[spark]`, and Java 17 for runs.
"""

from penstock.pipelines.projects import EventTable, EventTables, event_tables

__all__ = ["EventTable", "EventTables", "event_tables"]
