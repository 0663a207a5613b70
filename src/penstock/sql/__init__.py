"""SQL over the history with DuckDB: straight from a store or through its server, in a stream, up to one head."""

from penstock.sql.sessions import Answer, Limits, Session, open_session

__all__ = ["Answer", "Limits", "Session", "open_session"]
