"""The HTTP API: events in and out under `/v1`, and the document that describes it."""

from penstock.gates.api.api import Api, Sender

__all__ = ["Api", "Sender"]
