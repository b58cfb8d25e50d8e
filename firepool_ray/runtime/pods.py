"""What the controller hears from Kubernetes of its pods and queues.

A pod that is deleted, or whose Ray container ended, is known here seconds to half a minute before
Ray gives its node up. Used by ``controller`` and ``effects``; a pool whose settings name no
Kubernetes has none of this. Watches run on threads; events are fed on the controller's loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError

from firepool_ray.config import PoolConfig
from firepool_ray.core import events as ev
from firepool_ray.errors import KubeError
from firepool_ray.kube.api import Kube
from firepool_ray.kube.nodes import ClusterView, PodFacts
from firepool_ray.kube.queues import Own
from firepool_ray.runtime.signals import Signals
from firepool_ray.runtime.wardens import Link, NodeGone, Wardens

log = logging.getLogger(__name__)

#: The first answer of the API server is waited for so long when the controller starts.
READY_S = 10.0
#: So long before a draining Ray node ends, jobs that still run there are ended.
INTERRUPT_BEFORE_S = 3.0


class Pods:
    def __init__(
        self,
        config: PoolConfig,
        epoch: int,
        feed: Callable[[ev.Event], None],
        wardens: Wardens,
    ) -> None:
        self._config = config
        self._epoch = epoch
        self._feed = feed
        self._wardens = wardens
        self._loop = asyncio.get_running_loop()
        self._kube: Kube | None = None
        self._view: ClusterView | None = None
        self._signals = Signals(config, feed)
        self._bounds: dict[str, int | None] = {}  #: lanes of each profile, as last told
        self._draining: dict[str, str] = {}  #: node id -> pod whose deletion has begun
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem = ""  #: why Kubernetes cannot be asked

    async def start(self) -> None:
        settings = self._config.kubernetes
        if settings is None:
            return
        try:
            kube = await asyncio.to_thread(Kube.connect, settings.namespace, "controller")
        except KubeError as error:
            self.problem = str(error)
            log.warning("pods are not watched: %s", error)
            return
        self._kube = kube
        self._view = ClusterView(kube, settings.name, self._heard, self._bounds_changed).start()
        if not await asyncio.to_thread(self._view.wait_ready, READY_S):
            log.warning("Kubernetes does not answer yet: %s", self._view.problem())
        own = Own(kube.namespace, settings.name, self._view.raw)
        self._signals.start(kube, own)
        for profile in self._config.profiles:
            if shortage := self.shortage(profile):
                log.warning("%s", shortage)

    def stop(self) -> None:
        self._signals.stop()
        if self._view is not None:
            self._view.stop()

    # ------------------------------------------------------------ how many may come

    def _bounds_changed(self) -> None:
        """On the watch's thread: lanes beyond what the groups allow would wait for ever."""
        self._loop.call_soon_threadsafe(self._tell_bounds)

    def _tell_bounds(self) -> None:
        for name, profile in self._config.profiles.items():
            most = self._view.max_pods(name) if self._view is not None else None
            lanes = most * profile.pod.lanes if most is not None else None
            if self._bounds.get(name) != lanes:
                self._bounds[name] = lanes
                self._feed(ev.LanesAllowed(time.monotonic(), name, lanes))

    # ------------------------------------------------------------ pods that go

    def _heard(self, pod: PodFacts, gone: bool) -> None:
        """On the watch's thread."""
        if gone or pod.ended or pod.leaving:
            self._loop.call_soon_threadsafe(self._on_leaving, pod, gone or pod.ended)

    def _on_leaving(self, pod: PodFacts, ended: bool) -> None:
        now = time.monotonic()
        for node, link in list(self._wardens.links.items()):
            if link.gone or link.state is None or link.state.node_ip != pod.ip:
                continue
            if ended:
                was_told = self._draining.pop(node, "") == pod.name
                why = "was deleted and its grace ran out" if was_told else "has ended"
                self._wardens.lose(link, f"pod {pod.name} {why}")
            elif self._draining.get(node) != pod.name:
                self._draining[node] = pod.name
                self._feed(ev.NodeDraining(now, node))
                self._loop.call_later(self._grace_s(), self._interrupt, link, pod.name)

    def _grace_s(self) -> float:
        settings = self._config.kubernetes
        assert settings is not None
        return max(0.0, settings.drain_s - INTERRUPT_BEFORE_S)

    def _interrupt(self, link: Link, pod: str) -> None:
        """What still runs cannot finish: it ends now, when its client can still be told why."""
        if not link.gone:
            why = f"pod {pod} was deleted, and its grace of {self._grace_s():g} s ran out"
            task = asyncio.ensure_future(self._order(link, why))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _order(self, link: Link, why: str) -> None:
        try:
            await link.call("interrupt", self._epoch, why, timeout_s=INTERRUPT_BEFORE_S)
        except (NodeGone, RayError) as error:
            log.info("pod went before its jobs were interrupted: %s", error)

    # ------------------------------------------------------------ for people

    def name_at(self, ip: str) -> str:
        pod = self._view.pod_at(ip) if self._view is not None else None
        return pod.name if pod is not None else ""

    def trouble(self, profile: str) -> str:
        """Why no pod comes for the profile, in Kubernetes' words; "" where nothing is known."""
        if self._view is None:
            return self.problem
        return self._view.trouble(profile)

    def shortage(self, profile: str) -> str:
        """What the profile may have beyond what its group of pods allows; "" if nothing."""
        most = self._view.max_pods(profile) if self._view is not None else None
        settings = self._config.profiles[profile]
        if most is None or settings.max_lanes is None:
            return ""
        lanes = most * settings.pod.lanes
        if settings.max_lanes <= lanes:
            return ""
        return (
            f"profile {profile!r} may have {settings.max_lanes} lanes, but its worker group allows "
            f"{most} pods with {lanes} lanes: raise its maxReplicas (`firepool kube up`), or lower "
            "max_lanes"
        )

    def describe(self) -> dict[str, Any] | None:
        """The part of ``status`` about Kubernetes; None for a pool without."""
        settings = self._config.kubernetes
        if settings is None:
            return None
        pods = sorted(self._view.pods()) if self._view is not None else []
        shortages = [text for name in self._config.profiles if (text := self.shortage(name))]
        return {
            "cluster": settings.name,
            "problem": self.problem or (self._view.problem() if self._view is not None else ""),
            "pods": [pod._asdict() for pod in pods],
            "groups": [g._asdict() for g in self._view.groups()] if self._view is not None else [],
            "shortages": shortages,
            "requests": self._kube.requests if self._kube is not None else 0,
            "queues": dict(self._signals.problems),
        }
