"""Two coding agents that share one lane: think, call a tool in the pool, read its answer, repeat.

    python run.py

Each agent is a caller of its own, so neither ever gets a worker that the other one has used. The
agents are scripted: a language model would stand where ``attempts`` is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from tools import evaluate_snippet, verify

import firepool_ray as fp

THINK_S = 0.3

TASKS: dict[str, tuple[list[str], list[tuple[str, Any]]]] = {
    "ada": (
        [
            "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 3)",
            "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)",
        ],
        [("fib(1)", 1), ("fib(10)", 55)],
    ),
    "bob": (
        [
            "def is_prime(n):\n    return all(n % d for d in range(2, n))",
            "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, n))",
        ],
        [("is_prime(7)", True), ("is_prime(9)", False), ("is_prime(1)", False)],
    ),
}


class Agent:
    """Works through its attempts at one task until the tests pass."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.solved = False
        self.jobs: list[fp.Job] = []
        self._tools = fp.options(caller=name, timeout_s=10)

    def work(self) -> None:
        attempts, cases = TASKS[self.name]
        for attempt in attempts:
            time.sleep(THINK_S)
            first = cases[0][0]
            shown = self._call(evaluate_snippet, f"{attempt}\nprint({first})")
            self._say(f"{first} prints {shown.strip().splitlines()[-1]}")
            time.sleep(THINK_S)
            verdict = self._call(verify, attempt, cases)
            self._say(f"{verdict.passed} passed, {verdict.failed} failed {verdict.report}")
            if not verdict.failed:
                self.solved = True
                return

    def _call(self, tool: Any, *args: Any) -> Any:
        self.jobs.append(self._tools.submit(tool, *args))
        return self.jobs[-1].result()

    def _say(self, text: str) -> None:
        info = self.jobs[-1].info()
        waited_ms = 1000 * (info.started_at - info.submitted_at)
        print(f"{self.name}: [{info.source}, {waited_ms:.0f} ms] {text}", flush=True)


@contextmanager
def pool() -> Iterator[None]:
    """Join the cluster of RAY_ADDRESS (Ray Jobs sets it) or start a small one."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(logging_level="WARNING")
    else:
        ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="WARNING")
    try:
        fp.start(str(Path(__file__).with_name("pool.yaml")))
        yield
    finally:
        fp.shutdown()
        ray.shutdown()


def main() -> int:
    with pool():
        agents = [Agent(name) for name in TASKS]
        threads = [threading.Thread(target=agent.work) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0 if all(agent.solved for agent in agents) else 1


if __name__ == "__main__":
    sys.exit(main())
