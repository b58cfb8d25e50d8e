"""A driver of tests: keeps a pool busy from inside the cluster and tells what became of each job.

    python load.py '{"seconds": 20, "callers": 2, "width": 2, "job_s": 0.3}'

Prints one JSON line per job as it ends, then {"done": N}. ``width`` is jobs at a time per caller.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import ray

import firepool_ray as fp

_LOCK = threading.Lock()


def work(seconds: float) -> str:
    import os
    import time

    time.sleep(seconds)
    return os.uname().nodename


def tell(row: dict[str, Any]) -> None:
    with _LOCK:
        print(json.dumps(row), flush=True)


def one(options: dict[str, Any], job_s: float, patience_s: float) -> dict[str, Any]:
    job = fp.options(**options).submit(work, job_s)
    row: dict[str, Any] = {"job": job.id, "submitted": time.time(), "outcome": "ok", "why": ""}
    try:
        row["pod"] = job.result(timeout_s=patience_s)
    except Exception as error:
        row.update(outcome=type(error).__name__, why=str(error))
        row["started_code"] = getattr(error, "started", None)
    info = job.info()
    row.update(ended=time.time(), source=info.source, start_s=info.start_s)
    return row


def main(asked: dict[str, Any]) -> None:
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    options = asked.get("options", {})
    until = time.monotonic() + asked["seconds"]
    counts: list[int] = []

    def caller(name: str) -> None:
        done = 0
        while done == 0 or time.monotonic() < until:
            row = one({"caller": name, **options}, asked["job_s"], asked.get("patience_s", 120.0))
            tell({"caller": name, **row})
            done += 1
            time.sleep(asked.get("pause_s", 0.05))
        counts.append(done)

    threads = [
        threading.Thread(target=caller, args=(f"c{number}",))
        for number in range(asked.get("callers", 1))
        for _ in range(asked.get("width", 1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell({"done": sum(counts)})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
