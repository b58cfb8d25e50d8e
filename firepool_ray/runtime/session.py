"""Looking at a pool from outside: join a cluster, ask its controller, leave again.

The command line and the benchmark use it; jobs go through ``firepool_ray.client``. Every call is
bounded in time, and whatever Ray raises becomes ``PoolUnavailable`` with what to do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from firepool_ray.errors import PoolUnavailable
from firepool_ray.runtime.cluster import reach
from firepool_ray.runtime.pool import find_pool
from firepool_ray.runtime.protocol import NAMESPACE

#: A controller that restarts needs under 2 s; one that is silent for so long is stuck.
ANSWER_S = 15.0


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Join the Ray cluster at ``address`` (None: RAY_ADDRESS, else the one of this machine).

    Raises ``PoolUnavailable`` if there is none. A connection that stood before is left as it is.
    """
    if ray.is_initialized():
        yield
        return
    target = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        reach(target)
        ray.init(
            address=target,
            namespace=NAMESPACE,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if target == "auto" else f"at {target!r}"
        raise PoolUnavailable(
            f"no Ray cluster answers {where}: start one with `ray start --head`, or name one with "
            f"--address or RAY_ADDRESS ({_first_line(error)})"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def describe() -> dict[str, Any]:
    """The whole pool as plain values; raises ``PoolUnavailable`` where none runs."""
    return _ask("describe")


def explain(what: str) -> dict[str, Any]:
    """Why a job or caller waits, or where its time went; ``what`` is a job id or a caller."""
    return _ask("explain", what)


def settings() -> dict[str, Any]:
    """The settings the pool runs with, in the form of ``PoolConfig``."""
    return _ask("spec")


def _ask(method: str, *args: object) -> dict[str, Any]:
    handle = find_pool()
    if handle is None:
        raise PoolUnavailable("no pool runs on this cluster: start one with `firepool up`")
    try:
        answer: dict[str, Any] = ray.get(getattr(handle, method).remote(*args), timeout=ANSWER_S)
    except ray.exceptions.RayTaskError:
        raise
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise PoolUnavailable(
            f"the pool's controller does not answer ({type(error).__name__}); it restarts by "
            "itself if it died: try again, and if that does not help see `ray list actors` and "
            "the log of firepool-controller"
        ) from None
    return answer


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
