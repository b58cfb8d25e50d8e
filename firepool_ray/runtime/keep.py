"""Keeps a standing pool: wherever its controller is missing, it is started again.

``firepool keep`` runs beside Ray in the system pod. A driver can be aborted by Ray itself when the
head goes, so the work is done in a child process, and ``supervise`` starts that again for ever.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import ray
from ray.exceptions import RayError

from firepool_ray import config
from firepool_ray.errors import FirepoolError, PoolUnavailable
from firepool_ray.runtime import pool
from firepool_ray.runtime.session import cluster

log = logging.getLogger(__name__)

#: Between two looks for the controller. One lookup by name costs a millisecond.
LOOK_S = 2.0
#: Pauses after a child that ended: Ray may not be up yet.
AGAIN_S, AGAIN_MAX_S = 1.0, 10.0


def supervise(file: str, address: str | None) -> None:
    """Never returns. Raises ``ConfigError`` at once for a pool file that is wrong."""
    config.load(file)
    command = [sys.executable, "-m", "firepool_ray.runtime.keep", file, address or ""]
    pause_s = AGAIN_S
    while True:
        began = time.monotonic()
        subprocess.run(command, check=False)
        pause_s = AGAIN_S if time.monotonic() - began > 60 else min(AGAIN_MAX_S, 2 * pause_s)
        time.sleep(pause_s)


def keep(file: str, address: str | None) -> None:
    """Until the connection to Ray ends. Raises ``FirepoolError`` or ``RayError`` then."""
    with cluster(address):
        while True:
            if pool.find_pool() is None:
                asked = config.load(file)
                pool.start_pool(asked)
                log.warning("firepool: started the pool: profiles %s", ", ".join(asked.profiles))
            time.sleep(LOOK_S)
            if not ray.is_initialized():
                raise PoolUnavailable("the connection to Ray has ended")


def main(file: str, address: str) -> int:
    logging.basicConfig(level=logging.WARNING)
    try:
        keep(file, address or None)
    except (FirepoolError, RayError) as error:
        log.warning("firepool: the pool cannot be kept now: %s", error)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
