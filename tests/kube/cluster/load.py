"""A driver of tests: keeps a pool busy from inside the cluster and tells what became of each job.

    python load.py '{"seconds": 20, "callers": 2, "width": 2, "job_s": 0.3}'

Prints one JSON line per job as it ends, then {"done": N}. ``width`` is jobs at a time per caller.
With ``until`` it goes on until that file is there, ``seconds`` at most. With ``fresh_s`` a caller
that was never seen before has one job, then the next one after that pause.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count, repeat
from typing import Any

import ray

import firepool_ray as fp

_LOCK = threading.Lock()


def work(seconds: float, beats: str) -> str:
    """With ``beats`` it writes there that it still runs, ten times a second."""
    until = time.monotonic() + seconds
    while beats and time.monotonic() < until:
        with open(beats, "a") as file:
            file.write(f"{time.time()} {os.uname().nodename}\n")
        time.sleep(0.1)
    time.sleep(max(0.0, until - time.monotonic()))
    return os.uname().nodename


def tell(row: dict[str, Any]) -> None:
    with _LOCK:
        print(json.dumps(row), flush=True)


def one(options: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    job = fp.options(**options).submit(work, asked["job_s"], asked.get("beats", ""))
    row: dict[str, Any] = {"job": job.id, "submitted": time.time(), "outcome": "ok", "why": ""}
    try:
        row["pod"] = job.result(timeout_s=asked.get("patience_s", 120.0))
    except Exception as error:
        row.update(outcome=type(error).__name__, why=str(error))
        row["started_code"] = getattr(error, "started", None)
    info = job.info()
    row.update(ended=time.time(), source=info.source, start_s=info.start_s, worker=info.worker)
    return row


def connect(address: str) -> None:
    """On a slow machine Ray Client's server gives up its own start, and the next try works."""
    for patience in (True, True, True, False):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            return
        except ConnectionError:
            if not patience:
                raise


def main(asked: dict[str, Any]) -> None:
    connect(asked.get("address", "auto"))
    options = asked.get("options", {})
    until = time.monotonic() + asked["seconds"]
    stop = asked.get("until", "")
    counts: list[int] = []

    def goes_on() -> bool:
        return time.monotonic() < until and not (stop and os.path.exists(stop))

    def work_off(names: Iterator[str], pause_s: float) -> None:
        done = 0
        while done == 0 or goes_on():
            name = next(names)
            row = one({"caller": name, **options}, asked)
            tell({"caller": name, **row})
            done += 1
            time.sleep(pause_s)
        counts.append(done)

    pause_s = asked.get("pause_s", 0.05)
    threads = [
        threading.Thread(target=work_off, args=(repeat(f"c{number}"), pause_s))
        for number in range(asked.get("callers", 1))
        for _ in range(asked.get("width", 1))
    ]
    if "fresh_s" in asked:
        fresh = (f"fresh{number}" for number in count())
        threads.append(threading.Thread(target=work_off, args=(fresh, asked["fresh_s"])))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell({"done": sum(counts)})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
