"""SQL over the history with DuckDB: streamed from a store or through its server, up to one head."""

from penstock.sql.session import Limits, QueryResult, Session, open_session

__all__ = ["Limits", "QueryResult", "Session", "open_session"]
