"""A pool of warm Ray workers for short isolated jobs.

    import firepool_ray as fp

    job = fp.submit(fn, *args, **kwargs)
    job.result()

Ray itself is imported on first use, so that importing this package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firepool_ray.client.gather import as_completed, wait
    from firepool_ray.client.job import Job
    from firepool_ray.client.outcome import JobInfo
    from firepool_ray.client.pool import (
        Pool,
        closing,
        map,
        options,
        shutdown,
        start,
        status,
        submit,
    )
    from firepool_ray.config import PoolConfig

__version__ = "0.1.0"

_HOMES = {
    "Job": "client.job",
    "JobInfo": "client.outcome",
    "Pool": "client.pool",
    "PoolConfig": "config",
    "as_completed": "client.gather",
    "closing": "client.pool",
    "errors": "errors",
    "map": "client.pool",
    "options": "client.pool",
    "shutdown": "client.pool",
    "start": "client.pool",
    "status": "client.pool",
    "submit": "client.pool",
    "wait": "client.gather",
}

__all__ = [
    "Job",
    "JobInfo",
    "Pool",
    "PoolConfig",
    "as_completed",
    "closing",
    "errors",
    "map",
    "options",
    "shutdown",
    "start",
    "status",
    "submit",
    "wait",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{home}")
    value = module if name == home else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
