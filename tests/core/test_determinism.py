"""The same events give the same actions, whatever the hash seed of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import hashlib
from firepool_ray.core import events as ev
from firepool_ray.core.model import Caller, PoolSpec, ProfileSpec, QueueSpec
from tests.core.world import World

spec = PoolSpec(
    (ProfileSpec("p", gpus=1, max_lanes=3), ProfileSpec("q", gpus=2, max_lanes=2)),
    (QueueSpec("a", quota=2, limit=3), QueueSpec("b", quota=1, weight=2.0)),
    max_gpus=4,
)
world = World(spec, seed=7)
for i, caller in enumerate([("a", "x"), ("a", "x"), ("a", "y"), ("b", "z"), ("b", "w")]):
    world.join(f"c{i}", Caller(*caller))
for round in range(12):
    for i in range(5):
        name = f"c{i}"
        if world.clients[name].alive:
            world.submit(name, "ppq"[(i + round) % 3], count=i + 1, deps="d" * (round % 2))
    world.run(1.7)
    if round == 3:
        world.client_dies("c1")
    if round == 5:
        world.lose_node("n0")
    if round == 7:
        world.boot()
    if round == 8:
        world.faults, world.loss = 0.3, 0.1
world.calm()
world.run(60)
text = "\\n".join(world.trace)
print(len(world.trace), world.events, hashlib.sha256(text.encode()).hexdigest())
"""


def trace_with(hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_actions_do_not_depend_on_the_hash_seed() -> None:
    first, second = trace_with("1"), trace_with("2")
    assert first == second
    events, trace, _ = first.split()
    assert int(events) > 500 and int(trace) > 200
