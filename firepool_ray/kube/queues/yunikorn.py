"""Apache YuniKorn: its scheduler's REST API, since its queues are no objects of Kubernetes.

Asked directly, inside the cluster, so that the API server has no part in it. Resources there are
whole numbers of the resource's own unit (https://yunikorn.apache.org/docs/api/scheduler/).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from firepool_ray.errors import KubeError
from firepool_ray.kube.api import Object
from firepool_ray.kube.queues.base import Own, Reading, Source, amount, least, left

log = logging.getLogger(__name__)

#: How often it is asked: a change is to be followed within 2 s.
EVERY_S = 1.0
_ANSWER_S = 5.0
_QUEUES = "/ws/v1/partition/default/queues"
#: Labels by which a pod names its queue, newest first.
_LABELS = ("yunikorn.apache.org/queue", "queue")


class YuniKorn(Source):
    def __init__(
        self, address: str, own: Own, resource: str, on_change: Callable[[], None]
    ) -> None:
        """``address``: "host:port" of YuniKorn's REST API."""
        self._url = f"http://{address}{_QUEUES}"
        self._own = own
        self._resource = resource
        self._on_change = on_change
        self._http = urllib3.PoolManager(retries=False, timeout=_ANSWER_S)
        self._root: Any = None
        self._read_at = 0.0
        self._problem = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="firepool-yunikorn", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def read(self, queue: str) -> Reading:
        root, age_s = self._root, time.monotonic() - self._read_at
        if root is None:
            raise KubeError(self._problem or "YuniKorn has not been read yet")
        path = list(_path(root, queue))
        if not path or path[-1]["queuename"] != queue:
            raise KubeError(f"YuniKorn has no queue {queue!r}")
        mine = path[-1]
        running, pending = self._own.use(self._resource, lambda pod: _is_in(pod, queue))
        return Reading(
            quota=amount(mine.get("guaranteedResource"), self._resource),
            limit=least(amount(each.get("maxResource"), self._resource) for each in path),
            running=left(amount(mine.get("allocatedResource"), self._resource) or 0.0, running),
            pending=left(amount(mine.get("pendingResource"), self._resource) or 0.0, pending),
            age_s=0.0 if age_s < EVERY_S + _ANSWER_S else age_s,
            source=f"YuniKorn queue {queue}",
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                root = self._ask()
            except KubeError as error:
                if not self._problem:
                    log.warning("%s", error)
                self._problem = str(error)
            else:
                changed, self._root = root != self._root, root
                self._read_at, self._problem = time.monotonic(), ""
                if changed:
                    self._on_change()
            self._stopped.wait(EVERY_S)

    def _ask(self) -> Object:
        try:
            answer = self._http.request("GET", self._url)
            if answer.status != 200:
                raise KubeError(f"YuniKorn answered {answer.status} to {self._url}")
            root: Object = json.loads(answer.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise KubeError(
                f"YuniKorn does not answer at {self._url} ({error}): set kubernetes.yunikorn to "
                "the HOST:PORT of its REST API"
            ) from None
        if not isinstance(root, dict) or "queuename" not in root:
            raise KubeError(f"{self._url} is not YuniKorn's list of queues")
        return root


def _path(root: Object, queue: str) -> Iterator[Object]:
    """From the root towards the queue, as far as there is one."""
    found: Object | None = root
    while found is not None and _leads_to(found["queuename"], queue):
        yield found
        children = found.get("children") or ()
        found = next((c for c in children if _leads_to(c["queuename"], queue)), None)


def _leads_to(name: str, queue: str) -> bool:
    return queue == name or queue.startswith(f"{name}.")


def _is_in(pod: Object, queue: str) -> bool:
    labels = pod["metadata"].get("labels") or {}
    named = next((labels[key] for key in _LABELS if labels.get(key)), "")
    return bool(named) and _leads_to(queue, named)
