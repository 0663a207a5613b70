"""What every gate can do.

A server starts its engine, then its gates, and prints their addresses. To stop, it asks all gates to accept nothing
more, then stops the engine, which answers everything that was accepted, then stops the gates, which send those
answers and close.
"""

from typing import Protocol

from penstock.tcp import SessionInfo


class Gate(Protocol):
    """A door of the server. It lives on the server's event loop."""

    @property
    def name(self) -> str:
        """Its name, which is that of its flag and of its address in the ready line."""

    @property
    def address(self) -> str:
        """Where it listens, with the port it really has. Known once it has started."""

    async def start(self) -> None:
        """Listen. Raises NotLoopback or CannotListen, and holds nothing then."""

    def refuse(self) -> None:
        """Accept nothing more. What was accepted goes on."""

    async def stop(self) -> None:
        """Accept nothing more, send what is left to send, close."""


class SessionKeeper(Protocol):
    """A gate whose connections are listed and can be cut off."""

    def sessions(self) -> list[SessionInfo]:
        """All connections, the oldest first. The gate's name begins their ids."""

    def kick(self, session: str) -> bool:
        """Cut a connection off; whether there was one of this id."""
