"""Actions become Ray calls: one function per action, and nothing decided here.

Every scheduling effect of the pool calls ``.remote()`` in this module (or in ``lanes``, ``actors``,
``wardens``, which it uses). Each answers with one event. Runs on the controller's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup

from firepool_ray.config import PoolConfig, ProfileConfig
from firepool_ray.config.kubernetes import DEVICE_LOCKS
from firepool_ray.core import actions as do
from firepool_ray.core import events as ev
from firepool_ray.core.model import Fence
from firepool_ray.errors import StaleEpoch
from firepool_ray.runtime import actors, lanes
from firepool_ray.runtime.mailbox import Mailbox
from firepool_ray.runtime.protocol import (
    Promotion,
    Topology,
    WorkerAddress,
    WorkerReady,
    WorkerSpec,
)
from firepool_ray.runtime.wardens import Link, NodeGone, Wardens

log = logging.getLogger(__name__)

#: A standby answers in about a millisecond; one that cannot within this is replaced.
PROMOTE_S = 30.0
#: What a warden gets to kill a process tree and see it gone, before the lane is quarantined.
SWEEP_S = 10.0
#: After a start has lasted so long, and again, it is seen to that nothing holds its place.
LONG_START_S = 10.0
#: What one worker gets to leave when the pool ends.
END_S = 5.0


@dataclass
class LaneHandle:
    group: PlacementGroup
    profile: str
    node: str
    gpu_ids: tuple[str, ...]


@dataclass
class WorkerHandle:
    handle: Any
    spec: WorkerSpec
    pid: int = 0
    fence: Fence | None = None  #: of its present lease


class Effects:
    def __init__(
        self,
        config: PoolConfig,
        epoch: int,
        feed: Callable[[ev.Event], None],
        wardens: Wardens,
        boxes: dict[str, Mailbox],
        on_stale: Callable[[str], None],
        trouble: Callable[[str], str] = lambda profile: "",
    ) -> None:
        """``trouble`` says of a profile why no pods come for its lanes; "" for nothing known."""
        self._config = config
        self._epoch = epoch
        self._feed = feed
        self._wardens = wardens
        self._boxes = boxes
        self._on_stale = on_stale
        self._trouble = trouble
        self._tasks: set[asyncio.Task[None]] = set()
        self._creating: dict[str, asyncio.Future[Any]] = {}  #: workers Ray is registering
        self.lanes: dict[str, LaneHandle] = {}
        self.workers: dict[str, WorkerHandle] = {}
        self._table: dict[type[do.Action], Callable[[Any], Coroutine[Any, Any, None]]] = {
            do.GrowLane: self._grow_lane,
            do.RemoveLane: self._remove_lane,
            do.StartWorker: self._start_worker,
            do.PromoteWorker: self._promote_worker,
            do.RevokeLease: self._revoke_lease,
            do.RegrantLease: self._regrant_lease,
            do.RetireWorker: self._retire_worker,
        }

    def run(self, action: do.Action) -> None:
        """Start the effect; mail is posted at once."""
        if isinstance(action, do.SendGrant):
            self._send_grant(action)
        elif isinstance(action, do.SendRevoked):
            if (box := self._boxes.get(action.client)) is not None:
                box.post_revoked(action.lease)
        elif isinstance(action, do.SendRejection):
            if (box := self._boxes.get(action.client)) is not None:
                box.post_rejection(action.rejection)
        else:
            task = asyncio.ensure_future(self._guard(action))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _guard(self, action: do.Action) -> None:
        try:
            await self._table[type(action)](action)
        except StaleEpoch as error:
            self._on_stale(str(error))
        except NodeGone:
            log.info("%s: its node is gone", action)  # NodeLost tells the core
        except Exception as error:
            log.exception("effect failed: %s", action)
            self._feed(_failure_of(action, f"{type(error).__name__}: {error}"))

    def _send_grant(self, action: do.SendGrant) -> None:
        box = self._boxes.get(action.client)
        worker = self.workers.get(action.grant.lease.worker)
        if box is None or worker is None:
            return
        spec = worker.spec
        link = self._wardens.links.get(spec.node_id)
        box.post_grant(
            action.grant,
            WorkerAddress(
                worker=spec.worker,
                handle=worker.handle,
                warden=link.handle if link is not None else None,
                node_id=spec.node_id,
                lane=spec.lane,
                profile=spec.profile,
            ),
        )

    # ------------------------------------------------------------ lanes

    async def _grow_lane(self, action: do.GrowLane) -> None:
        profile = self._config.profiles[action.profile]
        try:
            group, node = await lanes.create(self._config, action.profile, action.lane)
        except (lanes.LaneLost, RayError) as error:
            said = self._trouble(action.profile)
            reason = f"{error}; Kubernetes: {said}" if said else str(error)
            self._feed(ev.LaneFailed(time.monotonic(), action.lane, reason))
            return
        try:
            gpu_ids: tuple[str, ...] = ()
            if profile.gpus > 1:
                gpu_ids = await asyncio.wait_for(
                    lanes.probe_gpus(group, profile.gpus), profile.start_deadline_s
                )
            await self._wardens.get(node)
        except (NodeGone, RayError, asyncio.TimeoutError) as error:
            await lanes.remove(group)
            reason = f"no warden on its node: {type(error).__name__} {error}"
            self._feed(ev.LaneFailed(time.monotonic(), action.lane, reason))
            return
        self.lanes[action.lane] = LaneHandle(group, action.profile, node, gpu_ids)
        self._feed(ev.LaneReady(time.monotonic(), action.lane, node, profile.device))

    async def _remove_lane(self, action: do.RemoveLane) -> None:
        lane = self.lanes.pop(action.lane, None)
        if lane is not None:
            for name in [n for n, w in self.workers.items() if w.spec.lane == action.lane]:
                # Actors first: one whose group vanishes under it stays RESTARTING for ever.
                await asyncio.to_thread(ray.kill, self.workers.pop(name).handle)
            await lanes.remove(lane.group)
        self._feed(ev.LaneRemoved(time.monotonic(), action.lane))
        if lane is not None and not any(other.node == lane.node for other in self.lanes.values()):
            await self._wardens.dismiss(lane.node)

    # ------------------------------------------------------------ workers

    async def _start_worker(self, action: do.StartWorker) -> None:
        lane = self.lanes.get(action.lane)
        if lane is None:
            gone = ev.WorkerStartFailed(time.monotonic(), action.worker, "its lane is gone")
            self._feed(gone)
            return
        profile = self._config.profiles[lane.profile]
        try:
            ready = await asyncio.wait_for(
                self._start_patiently(action, lane), timeout=profile.start_deadline_s
            )
        except asyncio.TimeoutError:
            reason = f"not ready within start_deadline_s = {profile.start_deadline_s:g} s"
            self._feed(ev.WorkerStartFailed(time.monotonic(), action.worker, reason))
            return
        except RayError as error:
            reason = _reason(error)
            self._feed(ev.WorkerStartFailed(time.monotonic(), action.worker, reason))
            return
        if profile.gpus <= 1:
            lane.gpu_ids = ready.gpu_ids
        self.workers[action.worker].pid = ready.pid
        self._feed(ev.WorkerStarted(time.monotonic(), action.worker))

    async def _start_patiently(self, action: do.StartWorker, lane: LaneHandle) -> WorkerReady:
        """A lost head may have left processes that hold the worker's place: they are ended."""
        start = asyncio.ensure_future(self._start(action, lane))
        try:
            while not (await asyncio.wait({start}, timeout=LONG_START_S))[0]:
                link = await self._wardens.get(lane.node)
                if ended := await link.call("end_idle", self._epoch):
                    log.info("%s starts slowly: ended %d idle processes", action.worker, ended)
            return await start
        finally:
            start.cancel()

    async def _start(self, action: do.StartWorker, lane: LaneHandle) -> WorkerReady:
        profile = self._config.profiles[lane.profile]
        link = await self._wardens.get(lane.node)
        assert link.state is not None
        device = profile.device or action.lane
        spec = WorkerSpec(
            worker=action.worker,
            lane=action.lane,
            slot=action.slot,
            profile=lane.profile,
            node_id=lane.node,
            device=device,
            epoch=self._epoch,
            words_dir=link.state.words_dir,
            device_lock_path=f"{self._lock_folder(profile, link)}/device-{device}.lock",
            gpus=profile.gpus,
            cpus=profile.cpus,
            preload=tuple(profile.preload),
            env=dict(profile.env),
        )
        creation = asyncio.ensure_future(
            asyncio.to_thread(actors.create_worker, spec, profile, lane.group, link.handle)
        )
        self._creating[action.worker] = creation
        creation.add_done_callback(lambda _: self._creating.pop(action.worker, None))
        # Shielded: a start that is given up meanwhile must still leave a handle to retire.
        handle = await asyncio.shield(creation)
        self.workers[action.worker] = WorkerHandle(handle, spec)
        ready: WorkerReady = await handle.ready.remote()
        return ready

    def _lock_folder(self, profile: ProfileConfig, link: Link) -> str:
        """Where all nodes on which the device can be used have its lock."""
        assert link.state is not None
        if self._config.kubernetes is not None and profile.pod.shares.kind == "dra":
            return DEVICE_LOCKS
        return link.state.words_dir

    async def _promote_worker(self, action: do.PromoteWorker) -> None:
        worker = self.workers.get(action.worker)
        lane = self.lanes.get(worker.spec.lane) if worker is not None else None
        if worker is None or lane is None:
            return
        link = await self._wardens.get(lane.node)
        node_ip = link.state.node_ip if link.state is not None else ""
        promotion = Promotion(
            epoch=self._epoch,
            fence=action.fence,
            caller=action.key.caller,
            deps=action.key.deps,
            client=action.client,
            gpu_ids=lane.gpu_ids,
            topology=Topology(worker.spec.lane, lane.node, node_ip, lane.gpu_ids, worker.spec.cpus),
        )
        worker.fence = action.fence
        try:
            await asyncio.wait_for(worker.handle.promote.remote(promotion), PROMOTE_S)
        except StaleEpoch:
            raise
        except RayActorError as error:
            self._feed(ev.WorkerExited(time.monotonic(), action.worker, _reason(error)))
        except (RayError, asyncio.TimeoutError) as error:
            reason = _reason(error)
            self._feed(ev.PromotionFailed(time.monotonic(), action.worker, action.fence, reason))
        else:
            self._feed(ev.WorkerPromoted(time.monotonic(), action.worker, action.fence))

    async def _link_of(self, worker: str) -> Link | None:
        known = self.workers.get(worker)
        return await self._wardens.get(known.spec.node_id) if known is not None else None

    async def _revoke_lease(self, action: do.RevokeLease) -> None:
        link = await self._link_of(action.worker)
        if link is None:
            return
        answer = await link.call(
            "revoke",
            self._epoch,
            action.worker,
            action.fence,
            action.mode,
            action.min_idle_s,
            action.successor,
            action.client,
        )
        if answer == "moved" and action.worker in self.workers:
            self.workers[action.worker].fence = action.successor
        self._feed(ev.RevokeAnswered(time.monotonic(), action.worker, action.fence, answer))

    async def _regrant_lease(self, action: do.RegrantLease) -> None:
        link = await self._link_of(action.worker)
        if link is None:
            return
        done = await link.call(
            "regrant", self._epoch, action.worker, action.revoked, action.fence, action.client
        )
        now = time.monotonic()
        if done:
            self.workers[action.worker].fence = action.fence
            self._feed(ev.LeaseRegranted(now, action.worker, action.fence))
        else:
            self._feed(ev.WorkerExited(now, action.worker, "it could not be granted again"))

    async def _retire_worker(self, action: do.RetireWorker) -> None:
        """Revoke whatever lease is left, kill, sweep, and let Ray know."""
        creation = self._creating.get(action.worker)
        if creation is not None:  # retired before Ray had registered it
            await asyncio.to_thread(ray.kill, await asyncio.shield(creation))
        worker = self.workers.get(action.worker)
        if worker is None:
            self._feed(ev.WorkerRetired(time.monotonic(), action.worker))
            return
        link = await self._wardens.get(worker.spec.node_id)
        reason = await self._retire(link, action.worker)
        if reason:
            log.error("lane %s is quarantined: %s", worker.spec.lane, reason)
            self._feed(ev.RetireFailed(time.monotonic(), action.worker, reason))
            return
        self.workers.pop(action.worker, None)
        self._feed(ev.WorkerRetired(time.monotonic(), action.worker))
        await asyncio.to_thread(ray.kill, worker.handle)

    async def _retire(self, link: Link, worker: str) -> str:
        give_up = time.monotonic() + SWEEP_S
        while True:
            try:
                reason: str = await link.call(
                    "retire", self._epoch, worker, SWEEP_S, timeout_s=SWEEP_S + 5.0
                )
                return reason
            except ValueError as error:
                # Its word still holds a lease (a promotion that was given up, say): end that.
                if time.monotonic() > give_up:
                    return f"its lease cannot be revoked: {error}"
                fence = self.workers[worker].fence
                await link.call("revoke", self._epoch, worker, fence, "stop", 0.0, None, "")
                await asyncio.sleep(0.05)

    async def end_worker(self, name: str) -> None:
        """End of the pool: kill and sweep without telling the core."""
        worker = self.workers.pop(name)
        link = self._wardens.links.get(worker.spec.node_id)
        try:
            if link is not None and not link.gone:
                ref = link.handle.end_worker.remote(name, worker.fence, self._epoch)
                await asyncio.wait_for(ref, END_S)
        except (RayError, ValueError, asyncio.TimeoutError) as error:
            log.warning("worker %s did not leave in order: %s", name, error)
        await asyncio.to_thread(ray.kill, worker.handle)


def _failure_of(action: do.Action, reason: str) -> ev.Event:
    """Every effect ends in an event: the core would wait for ever for one that only broke."""
    at = time.monotonic()
    if isinstance(action, do.GrowLane):
        return ev.LaneFailed(at, action.lane, reason)
    if isinstance(action, do.RemoveLane):
        return ev.LaneRemoved(at, action.lane)
    if isinstance(action, do.StartWorker):
        return ev.WorkerStartFailed(at, action.worker, reason)
    if isinstance(action, do.PromoteWorker):
        return ev.PromotionFailed(at, action.worker, action.fence, reason)
    if isinstance(action, do.RetireWorker):
        return ev.RetireFailed(at, action.worker, reason)
    assert isinstance(action, do.RevokeLease | do.RegrantLease)
    return ev.WorkerExited(at, action.worker, reason)


def _reason(error: BaseException) -> str:
    """The first telling line of what Ray says."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}"
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"
