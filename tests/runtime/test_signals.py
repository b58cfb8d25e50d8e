"""What cluster queues say reaches the core: at once, with its age, and not when it is unknown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from firepool_ray.config import PoolConfig
from firepool_ray.core import events as ev
from firepool_ray.errors import KubeError
from firepool_ray.kube.api import RESOURCE_QUOTA
from firepool_ray.kube.queues import Own
from firepool_ray.runtime import signals
from firepool_ray.runtime.signals import Signals
from tests.kube.fakes import FakeKube

KEY = "requests.nvidia.com/gpu"


def quota(name: str, gpus: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": {"hard": {KEY: str(gpus)}}}


def config(**changes: Any) -> PoolConfig:
    data = {
        "profiles": {"cpu": {"max_lanes": 1}, "gpu": {"gpus": 1, "max_lanes": 4}},
        "queues": {
            "rl": {"cluster_queue": "quota:ml/gpus"},
            "agents": {"cluster_queue": "quota:ml/none"},
            "plain": {},
        },
        "kubernetes": {},
        **changes,
    }
    return PoolConfig.from_dict(data)


class Bench:
    def __init__(self, settings: PoolConfig) -> None:
        self.kube = FakeKube()
        self.fed: list[ev.QueueSignal] = []
        self.signals = Signals(settings, self._feed)

    def _feed(self, event: ev.Event) -> None:
        assert isinstance(event, ev.QueueSignal)
        self.fed.append(event)

    def start(self) -> None:
        self.signals.start(self.kube, Own("default", "pool", list))  # type: ignore[arg-type]

    def stop(self) -> None:
        self.signals.stop()
        self.kube.end_watches()

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not what():
                await asyncio.sleep(0.01)

    def last(self) -> tuple[str, float | None, float | None]:
        event = self.fed[-1]
        return event.queue, event.quota, event.limit


def test_a_change_is_passed_on_at_once_and_the_unknown_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        bench = Bench(config())
        bench.kube.put(RESOURCE_QUOTA, quota("gpus", 4))
        bench.start()
        await bench.until(lambda: bench.fed)
        assert bench.last() == ("rl", 4, 4)
        assert bench.fed[-1].source == "ResourceQuota ml/gpus"
        assert bench.signals.problems == {"agents": "there is no ResourceQuota 'ml/none'"}
        bench.kube.put(RESOURCE_QUOTA, quota("gpus", 1))
        await bench.until(lambda: bench.last() == ("rl", 1, 1))
        bench.kube.put(RESOURCE_QUOTA, quota("none", 2))
        await bench.until(lambda: bench.last() == ("agents", 2, 2))
        assert bench.signals.problems == {}
        assert {event.queue for event in bench.fed} == {"rl", "agents"}
        bench.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert told == ["queue agents is not followed: there is no ResourceQuota 'ml/none'"]


def test_it_is_said_again_with_its_age_while_it_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "AGAIN_S", 0.02)

    async def scenario() -> None:
        bench = Bench(config())
        bench.kube.put(RESOURCE_QUOTA, quota("gpus", 4))
        bench.start()
        await bench.until(lambda: len(bench.fed) >= 3)
        assert bench.fed[-1].age_s == 0
        bench.kube.failure = KubeError("the API server does not answer")
        bench.kube.break_watches(KubeError("broken"))
        await bench.until(lambda: bench.fed[-1].age_s > 0.1)
        assert bench.last() == ("rl", 4, 4)
        bench.stop()

    asyncio.run(scenario())


def test_a_pool_without_gpus_says_why_it_follows_nothing() -> None:
    async def scenario() -> None:
        bench = Bench(config(profiles={"cpu": {"max_lanes": 1}}))
        bench.start()
        assert "no profile of this pool has GPUs" in bench.signals.problems["rl"]
        assert bench.kube.requests == []
        bench.stop()

    asyncio.run(scenario())


def test_a_pool_whose_queues_follow_nobody_asks_nobody() -> None:
    async def scenario() -> None:
        bench = Bench(config(queues={"plain": {}}))
        bench.start()
        await asyncio.sleep(0)
        assert bench.kube.requests == [] and bench.signals.problems == {}
        bench.stop()

    asyncio.run(scenario())
