"""Gates: the doors through which requests come in. Each has a socket and speaks one protocol."""

from penstock.gates.contract import Gate
from penstock.gates.http import HttpGate

__all__ = ["Gate", "HttpGate"]
