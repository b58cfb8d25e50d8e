"""Queues of the cluster tell the pool's queues what they may have. Used by ``pods``.

A change is passed on at once; everything again every few seconds, so that the core knows how old
it is. A queue that cannot be read is not passed on: what it said last counts for
``signal_stale_s``, then the pool file's settings hold, and ``status`` says why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from firepool_ray.config import PoolConfig
from firepool_ray.core import events as ev
from firepool_ray.errors import KubeError
from firepool_ray.kube.api import Kube
from firepool_ray.kube.queues import Own, Queues

log = logging.getLogger(__name__)

AGAIN_S = 5.0
#: Changes within this are passed on together: a busy queue system has hundreds a second.
GATHER_S = 0.1


class Signals:
    def __init__(self, config: PoolConfig, feed: Callable[[ev.Event], None]) -> None:
        self._config = config
        self._feed = feed
        self._follow = {
            name: queue.cluster_queue
            for name, queue in config.queues.items()
            if queue.cluster_queue
        }
        #: Cluster queues count one kind of GPU: that of the first profile with GPUs.
        self._profile = next((p for p in config.profiles.values() if p.gpus), None)
        self._loop = asyncio.get_running_loop()
        self._queues: Queues | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.problems: dict[str, str] = {}  #: why a queue cannot be read, by pool queue

    def start(self, kube: Kube, own: Own) -> None:
        """Returns at once; a queue system that does not answer yet is tried again."""
        settings, profile = self._config.kubernetes, self._profile
        if not self._follow or settings is None:
            return
        if profile is None:
            why = "no profile of this pool has GPUs, and cluster queues count GPUs"
            self.problems = dict.fromkeys(self._follow, why)
            log.warning("queues of the cluster are not followed: %s", why)
            return
        self._queues = Queues(
            kube,
            self._follow,
            own,
            resource=profile.pod.gpu_resource,
            yunikorn=settings.yunikorn,
            on_change=self._heard,
        )
        self._task = asyncio.ensure_future(self._run(self._queues))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._queues is not None:
            self._queues.stop()

    async def _run(self, queues: Queues) -> None:
        while True:
            try:
                await asyncio.to_thread(queues.start)
            except KubeError as error:
                log.info("queues of the cluster are tried again: %s", error)
            await asyncio.sleep(AGAIN_S)
            self._pass_on()

    def _heard(self) -> None:
        """On a watch's thread."""
        self._loop.call_soon_threadsafe(self._gather)

    def _gather(self) -> None:
        if self._soon is None:
            self._soon = self._loop.call_later(GATHER_S, self._pass_on)

    def _pass_on(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        for name in self._follow:
            self._read(name)

    def _read(self, name: str) -> None:
        assert self._queues is not None and self._profile is not None
        try:
            reading = self._queues.read(name)
        except KubeError as error:
            if self.problems.get(name) != str(error):
                log.warning("queue %s is not followed: %s", name, error)
            self.problems[name] = str(error)
            return
        self.problems.pop(name, None)
        self._feed(
            ev.QueueSignal(
                time.monotonic(),
                name,
                reading.quota,
                reading.limit,
                reading.weight,
                reading.running,
                reading.pending,
                gpu_type=self._profile.gpu_type,
                age_s=reading.age_s,
                source=reading.source,
            )
        )
