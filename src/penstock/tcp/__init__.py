"""Connections over TCP under control: counted, bounded, timed, listed, and cut off when they misbehave.

What is said on them is up to whoever builds on this: `penstock.mq` and the gates.
"""

from penstock.tcp.loops import new_loop
from penstock.tcp.peers import PeerLog, network_of, shown_peer
from penstock.tcp.server import TcpServer
from penstock.tcp.session import Hold, SessionInfo, TcpLimits, TcpSession, Why

__all__ = [
    "Hold",
    "PeerLog",
    "SessionInfo",
    "TcpLimits",
    "TcpServer",
    "TcpSession",
    "Why",
    "network_of",
    "new_loop",
    "shown_peer",
]
