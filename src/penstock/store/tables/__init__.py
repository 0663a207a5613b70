"""What is the same in every store that keeps its history and its state in tables of a database.

A backend has its own database and its own SQL, by the names of `queries`, and its own ways where those matter. The
rules that are no matter of SQL are here, once.
"""
