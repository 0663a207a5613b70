"""Gates: sockets, sessions, back-pressure and time-outs. What a request means, they leave to the engine."""

from penstock.gates.contract import Gate, SessionKeeper
from penstock.gates.http import HttpGate
from penstock.gates.mq import MqGate
from penstock.gates.remits import RemitsGate
from penstock.gates.zeromq import ZeromqGate

__all__ = ["Gate", "HttpGate", "MqGate", "RemitsGate", "SessionKeeper", "ZeromqGate"]
