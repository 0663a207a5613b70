"""TCP connections: counted, bounded, timed, listed, and cut off when they misbehave.

`penstock.mq` and the gates build their protocols on it.
"""

from penstock.tcp.server import PeerLog, TcpServer, new_loop
from penstock.tcp.session import CloseReason, ReadHold, SessionInfo, TcpLimits, TcpSession, network_of, shown_peer
from penstock.tcp.tls import TlsLayer, words_of
