"""Joining a Ray cluster: is anything there at all? Used by ``pool``, ``session`` and the client.

``ray.init`` itself tries a dead address for minutes before it says so.
"""

from __future__ import annotations

import logging
import os
import socket

import ray
from ray._private.services import canonicalize_bootstrap_address

from firepool_ray.errors import PoolUnavailable

#: A host that does not accept a connection by then is down.
REACH_S = 5.0


def reach(address: str) -> None:
    """Raise ``OSError`` or ``ValueError`` unless something listens at a cluster's address."""
    if not address.startswith("ray://"):
        address = canonicalize_bootstrap_address(address) or ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()


def join_or_start() -> bool:
    """Connect this process as ``ray.init()`` would, unless it is; True if that was done here.

    Raises ``PoolUnavailable`` at once where RAY_ADDRESS names a cluster that does not answer.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "")
    if address and address != "local":
        try:
            reach(address)
        except (OSError, ValueError) as error:
            raise PoolUnavailable(
                f"no Ray cluster answers at RAY_ADDRESS={address!r} ({error}): start it, or unset "
                "RAY_ADDRESS to use a local Ray"
            ) from None
    ray.init(logging_level=logging.WARNING)
    return True
