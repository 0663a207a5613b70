"""Gates: sockets, sessions, back-pressure and time-outs. The engine knows what a request means."""

from penstock.gates.contract import Gate
from penstock.gates.http import HttpGate
from penstock.gates.mq import MqGate
from penstock.gates.remits import RemitsGate
from penstock.gates.tls import ServerTls
from penstock.gates.zeromq import ZeromqGate

__all__ = ["Gate", "HttpGate", "MqGate", "RemitsGate", "ServerTls", "ZeromqGate"]
