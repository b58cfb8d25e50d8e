"""News waiting for one client, and its one long poll.

Owned by the controller, used on its event loop only. A grant stays until the client says that it
has seen it; revocations and rejections are sent once, since a client that missed one is told again
when it next states leases or demand that do not hold.
"""

from __future__ import annotations

import asyncio
from typing import Any

from firepool_ray.core.model import Grant, LeaseId, Rejection
from firepool_ray.runtime.protocol import SyncReply, SyncRequest, WorkerAddress


class Mailbox:
    def __init__(self, client: str, now: float) -> None:
        self.client = client
        self.seq = -1
        self.since = now
        self.last: SyncRequest | None = None
        self.heard = now
        self.tethered = False
        self._grants: dict[int, tuple[Grant, WorkerAddress]] = {}
        self._revoked: list[LeaseId] = []
        self._rejections: list[Rejection] = []
        self._parked: asyncio.Future[bool] | None = None

    def accept(self, request: SyncRequest, epoch: int, now: float) -> bool:
        """Take the newer statement and release the older poll; False if this one is older."""
        if request.seq <= self.seq:
            return False
        self.seq, self.last, self.heard = request.seq, request, now
        self._release(False)
        if request.acked[0] == epoch:
            for number in [n for n in self._grants if n <= request.acked[1]]:
                del self._grants[number]
        return True

    def post_grant(self, grant: Grant, address: WorkerAddress) -> None:
        self._grants[grant.number] = (grant, address)
        self._release(True)

    def post_revoked(self, lease: LeaseId) -> None:
        # A grant not yet seen of the same lease is withdrawn by its revocation.
        for number, (grant, _) in list(self._grants.items()):
            if grant.lease == lease:
                del self._grants[number]
        self._revoked.append(lease)
        self._release(True)

    def post_rejection(self, rejection: Rejection) -> None:
        self._rejections.append(rejection)
        self._release(True)

    def close(self) -> None:
        self._release(False)

    async def wait(self, timeout_s: float) -> bool:
        """True when there is news; False when a newer poll took over, or after the timeout."""
        if self._grants or self._revoked or self._rejections:
            return True
        self._parked = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._parked, timeout_s)
        except asyncio.TimeoutError:
            return False

    def take(self, epoch: int) -> SyncReply:
        grants = tuple(grant for grant, _ in self._grants.values())
        reply = SyncReply(
            epoch=epoch,
            grants=grants,
            addresses=tuple(address for _, address in self._grants.values()),
            revoked=tuple(self._revoked),
            rejections=tuple(self._rejections),
        )
        self._revoked.clear()
        self._rejections.clear()
        return reply

    def about(self) -> dict[str, Any]:
        return dict(self.last.about) if self.last is not None else {}

    def _release(self, news: bool) -> None:
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(news)
        self._parked = None
