"""What `/livez`, `/readyz` and `/health` answer, however HTTP is served."""

from collections.abc import Callable
from typing import Any

from penstock import __version__
from penstock.engine import Engine
from penstock.engine.access import NOBODY, Login
from penstock.errors import PenstockError

Answer = tuple[dict[str, Any], int]
"""A document and a status of HTTP."""


def alive() -> Answer:
    return {"status": "ok"}, 200


def ready(engine: Engine, sender: Callable[[], Login]) -> Answer:
    """Whether clients are welcome; why not only for principals."""
    if not (reasons := engine.unready):
        return {"status": "ok"}, 200
    try:
        is_known = sender().principal is not NOBODY
    except PenstockError:
        # A client with a wrong token learns as little as a load balancer without one.
        is_known = False
    return {"status": "unavailable", **({"reasons": reasons} if is_known else {})}, 503


def health(engine: Engine, login: Login) -> Answer:
    """Whether events can be appended; about the store only for principals."""
    identity, reason = engine.identity, engine.trouble
    about: dict[str, Any] = {"status": "ok" if reason is None else "unavailable"}
    # A load balancer has no token, and needs the status only.
    if login.principal is not NOBODY:
        about |= {} if reason is None else {"reason": reason}
        about |= {"store_id": identity.id, "timeline": identity.timeline, "version": __version__}
    return about, 200 if reason is None else 503
