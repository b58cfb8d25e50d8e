"""A driver of tests: what the controller says of a queue, several times a second.

    python watch.py rl 30

Prints [time, quota] whenever the quota is another, for 30 s, then a last line.
"""

from __future__ import annotations

import json
import sys
import time

import ray

from firepool_ray.runtime.pool import find_pool


def main(queue: str, seconds: float) -> None:
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    pool = find_pool()
    assert pool is not None
    last, until = None, time.monotonic() + seconds
    while time.monotonic() < until:
        said = ray.get(pool.describe.remote())
        quota = next(row["quota"] for row in said["queues"] if row["queue"] == queue)
        if quota != last:
            print(json.dumps([time.time(), quota]), flush=True)
            last = quota
        time.sleep(0.05)
    print(json.dumps([time.time(), last]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
