"""TCP connections: counted, bounded, timed, listed, and cut off when they misbehave.

`penstock.mq` and the gates build their protocols on it.
"""

from penstock.tcp.server import PeerLog, TcpServer, new_loop
from penstock.tcp.session import Hold, SessionInfo, TcpLimits, TcpSession, Why, network_of, shown_peer

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
