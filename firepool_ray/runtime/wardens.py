"""The controller's links to its wardens: one per node with lanes.

Starts wardens, hears their news, and finds out when one is gone. A warden that only restarted
hands its words over again; if none answers within ``LOST_AFTER_S`` the node is taken for lost,
long before Ray says so. Used by ``controller`` and ``effects`` on the controller's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from firepool_ray.core import events as ev
from firepool_ray.errors import StaleEpoch
from firepool_ray.runtime import actors
from firepool_ray.runtime.protocol import WardenState, WordNews

log = logging.getLogger(__name__)

#: A restarted warden answers within 2 s; a killed pod never does. Ray's own verdict takes 29 s.
LOST_AFTER_S = 10.0
#: Bound on one control call; a longer silence counts as a broken link.
CALL_S = 15.0


class NodeGone(Exception):
    """The node's warden cannot be reached any more."""


class Link:
    """One warden."""

    def __init__(self, node: str, handle: Any) -> None:
        self.node = node
        self.handle = handle
        self.generation = 0
        self.state: WardenState | None = None
        self.gone = False
        self.healthy = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def call(self, method: str, *args: Any, timeout_s: float = CALL_S) -> Any:
        """One idempotent order, repeated until the warden answers or its node is lost."""
        while True:
            if self.gone:
                raise NodeGone(self.node)
            try:
                ref = getattr(self.handle, method).remote(*args)
                return await asyncio.wait_for(ref, timeout_s)
            except (ActorUnavailableError, RayActorError, asyncio.TimeoutError):
                self.healthy.clear()
                await asyncio.sleep(0.2)


class Wardens:
    def __init__(
        self,
        epoch: int,
        feed: Callable[[ev.Event], None],
        on_stale: Callable[[str], None],
        is_known: Callable[[str], list[str]],
    ) -> None:
        self._epoch = epoch
        self._feed = feed
        self._on_stale = on_stale
        self._known_workers = is_known
        self.links: dict[str, Link] = {}
        self._starting: dict[str, asyncio.Task[Link]] = {}

    async def get(self, node: str) -> Link:
        """The node's warden, started if there is none. Raises ``NodeGone``."""
        link = self.links.get(node)
        if link is not None and not link.gone:
            return link
        task = self._starting.get(node)
        if task is None:
            task = self._starting[node] = asyncio.ensure_future(self._start(node))
            task.add_done_callback(lambda _: self._starting.pop(node, None))
        return await asyncio.shield(task)

    async def _start(self, node: str) -> Link:
        old = self.links.get(node)
        generation = old.generation + 1 if old is not None else 0
        deadline = time.monotonic() + 60.0
        while True:
            handle = await asyncio.to_thread(actors.create_warden, node, generation)
            link = Link(node, handle)
            link.generation = generation
            try:
                link.state = await asyncio.wait_for(handle.hello.remote(self._epoch), 30.0)
                break
            except StaleEpoch as error:
                self._on_stale(str(error))
                raise NodeGone(node) from error
            except (RayError, asyncio.TimeoutError) as error:
                if time.monotonic() > deadline or not await asyncio.to_thread(node_alive, node):
                    raise NodeGone(f"no warden can start on node {node}: {error}") from error
                generation += 1
                await asyncio.sleep(0.2)
        self.adopt(link)
        return link

    def adopt(self, link: Link) -> None:
        """Hear this warden's news from now on."""
        self.links[link.node] = link
        link.healthy.set()
        link.task = asyncio.ensure_future(self._listen(link))

    async def _listen(self, link: Link) -> None:
        cursor = link.state.cursor if link.state is not None else 0
        while not link.gone:
            try:
                ref = link.handle.watch.remote(self._epoch, cursor)
                cursor, news = await asyncio.wait_for(ref, CALL_S + 10.0)
                link.healthy.set()
            except StaleEpoch as error:
                self._on_stale(str(error))
                return
            except (RayError, asyncio.TimeoutError) as error:
                if link.gone:
                    return
                log.warning("warden of node %s does not answer: %s", link.node[:12], error)
                if not await self._revive(link):
                    self.lose(link, f"node {link.node[:12]} is lost")
                    return
                cursor = link.state.cursor if link.state is not None else 0
                continue
            for item in news:
                if item.kind == "orphaned":
                    self.lose(link, f"the raylet of node {link.node[:12]} has ended")
                    return
                self._feed(to_event(item))

    def lose(self, link: Link, reason: str) -> None:
        """Everything on its node is gone."""
        if link.gone:
            return
        link.gone = True
        self._feed(ev.NodeLost(time.monotonic(), link.node, reason))

    async def _revive(self, link: Link) -> bool:
        """Reach the restarted warden, or start a successor; False if the node is lost."""
        deadline = time.monotonic() + LOST_AFTER_S
        while time.monotonic() < deadline and not link.gone:
            if not await asyncio.to_thread(node_alive, link.node):
                return False
            try:
                state: WardenState = await asyncio.wait_for(
                    link.handle.hello.remote(self._epoch), 3.0
                )
            except ActorDiedError:
                link.generation += 1
                link.handle = await asyncio.to_thread(
                    actors.create_warden, link.node, link.generation
                )
            except (RayError, asyncio.TimeoutError):
                await asyncio.sleep(0.2)
            else:
                self._catch_up(link, state)
                return True
        return False

    def _catch_up(self, link: Link, state: WardenState) -> None:
        """Tell the core what it may have missed while the warden was away."""
        link.state = state
        link.healthy.set()
        now = time.monotonic()
        present = {entry.spec.worker: entry for entry in state.workers if entry.alive}
        for name in self._known_workers(link.node):
            entry = present.get(name)
            if entry is None:
                self._feed(ev.WorkerExited(now, name, "it died while its warden was away"))
            elif entry.word.state == "idle":
                self._feed(ev.WorkerIdle(now, name, entry.word.fence, now - entry.age_s))
            elif entry.word.state == "busy":
                since = now - entry.age_s
                self._feed(ev.WorkerBusy(now, name, entry.word.fence, since))
            elif entry.word.state == "revoked":
                self._feed(ev.LeaseEnded(now, name, entry.word.fence))

    async def dismiss(self, node: str) -> None:
        """The node holds no lanes any more: its warden leaves with the last one."""
        link = self.links.pop(node, None)
        if link is None:
            return
        link.gone = True
        if link.task is not None:
            link.task.cancel()
        await asyncio.to_thread(ray.kill, link.handle, no_restart=True)

    def forget(self, node: str) -> None:
        link = self.links.pop(node, None)
        if link is not None:
            link.gone = True


def to_event(news: WordNews) -> ev.Event:
    """Ages become times of this process's clock, since the clocks of nodes differ."""
    now = time.monotonic()
    if news.kind == "idle":
        return ev.WorkerIdle(now, news.worker, news.fence, now - news.age_s)
    if news.kind == "busy":
        return ev.WorkerBusy(now, news.worker, news.fence, now - news.age_s)
    if news.kind == "ended":
        return ev.LeaseEnded(now, news.worker, news.fence)
    return ev.WorkerExited(now, news.worker, news.detail or "its process is gone")


def node_alive(node: str) -> bool:
    """Ray's own verdict. Blocks."""
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return any(row["NodeID"] == node and row["Alive"] for row in rows)
