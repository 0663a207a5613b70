"""Pipelines: Spark Declarative Pipelines on a Penstock. docs/pipelines.md is the guide.

A project is made from a sample of the history, run, checked and watched; what its transformations need is here and in
`penstock.spark.pipelines`. This needs `penstock[spark]`, and Java 17 to run.
"""

from penstock.pipelines.projects import EventTable, EventTables, event_tables

__all__ = ["EventTable", "EventTables", "event_tables"]
