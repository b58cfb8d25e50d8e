"""One pod's life: prepare, init containers, containers with restarts, end.

A thread of its own leads it until it is deleted; another one then ends it as a kubelet does:
preStop hooks, SIGTERM, the grace period, SIGKILL, and the object goes last.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.kube.bed.containers import Container, utc_now
from tests.kube.bed.controlplane import GATEWAY
from tests.kube.bed.devices import Gpus, claimed_devices, wanted_gpus
from tests.kube.bed.environment import Facts, container_env
from tests.kube.bed.names import Named
from tests.kube.bed.probes import start_probes
from tests.kube.bed.rest import STRATEGIC, ApiError, Object, Rest
from tests.kube.bed.sandbox import Sandbox
from tests.kube.bed.status import Waiting, conditions, container_status, unmade_status
from tests.kube.bed.volumes import MountPoints, fill_volumes, mount_script

log = logging.getLogger(__name__)
T = TypeVar("T")

_TICK_S = 0.1
_RETRY_S = 1.0
#: Pauses between restarts: a real kubelet begins with 10 s and ends with 5 minutes.
_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
#: However short the grace period and long the hook, SIGTERM is given this much.
_LEAST_GRACE_S = 2.0


@dataclass
class Host:
    """What all pods of the machine share."""

    rest: Rest
    folder: Path
    hosts: Path  #: mounted as every pod's /etc/hosts
    gpus: Gpus
    extra_env: Mapping[str, str]
    names_changed: Callable[[], None]
    points: MountPoints = field(default_factory=MountPoints)
    numbers: itertools.count[int] = field(default_factory=itertools.count)


class Pod:
    """Made when the scheduler has bound it to a node that is played here."""

    def __init__(self, host: Host, manifest: Object) -> None:
        self.manifest = manifest
        self.name: str = manifest["metadata"]["name"]
        self.namespace: str = manifest["metadata"]["namespace"]
        self.uid: str = manifest["metadata"]["uid"]
        self.node: str = manifest["spec"]["nodeName"]
        self.folder = host.folder / self.uid
        self.folder.mkdir(parents=True)
        self.sandbox: Sandbox | None = None
        self.containers: list[Container] = []
        self.phase = "Pending"
        #: No container starts any more.
        self.stopping = threading.Event()
        self._host = host
        self._facts = Facts(address="")
        self._inits: list[Container] = []
        self._waiting: dict[str, Waiting] = {}
        self._failed = ""  #: the reason, once all of it was killed from outside
        self._silent = False  #: the node is dead: nothing is reported
        self._deadline: float | None = None
        self._conditions: list[dict[str, Any]] = []
        self._started_at = utc_now()
        self._lock = threading.RLock()
        #: Another lock, since an API server that is away must not keep a pod from dying.
        self._reporting = threading.Lock()
        self._life = threading.Thread(target=self._live, name=f"pod {self.name}", daemon=True)
        self._life.start()

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.manifest["metadata"].get("labels") or {}
        return found

    @property
    def ready(self) -> bool:
        running = self.phase == "Running" and not self._failed
        return running and bool(self.containers) and all(c.ready for c in self.containers)

    def named(self) -> Named | None:
        """How others find it, while they can."""
        if self.sandbox is None or self.phase in ("Succeeded", "Failed") or self._silent:
            return None
        ready = self.ready and not self.stopping.is_set()
        return Named(self.name, self.namespace, self.sandbox.address, self.labels, ready)

    def container(self, name: str | None = None) -> Container:
        """By name, or the first one; raises ``KeyError`` if it has not been started."""
        for container in [*self.containers, *self._inits]:
            if name in (None, container.name):
                return container
        raise KeyError(f"pod {self.name} has no container {name or ''} yet")

    # -- ends from outside ---------------------------------------------------------------------

    def delete(self, grace_s: float) -> None:
        """Begins the end, or shortens the grace of one that has begun."""
        with self._lock:
            deadline = time.monotonic() + grace_s
            if grace_s <= 0:
                self.stopping.set()
                self._kill_all()
            if self._deadline is not None:
                self._deadline = min(self._deadline, deadline)
                return
            self._deadline = deadline
            self.stopping.set()
        threading.Thread(target=self._end, name=f"end {self.name}", daemon=True).start()

    def fail(self, reason: str) -> None:
        """SIGKILL to every process; the pod has failed and is not restarted."""
        with self._lock:
            self._failed = reason
            self._kill_all()

    def drop(self) -> None:
        """Its node is gone: every process dies and nobody is told."""
        with self._lock:
            self._silent = True
            self.stopping.set()
            self._kill_all()
        self._life.join(_RETRY_S)
        self._close()

    def _kill_all(self) -> None:
        for container in [*self._inits, *self.containers]:
            container.kill()

    # -- life ----------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            volumes = self._prepare()
            if self._run_inits(volumes):
                self._run(volumes)
        except _Stopped:
            pass
        except Exception as error:
            log.exception("pod %s", self.name)
            self._failed = self._failed or f"{type(error).__name__}: {error}"[:200]
        if self._failed:
            self._kill_all()
            for container in [*self._inits, *self.containers]:
                container.poll()
            self.phase = "Failed"
        if not self.stopping.is_set():
            self._close()
            self.report()

    def _prepare(self) -> dict[str, Path]:
        rest, pod = self._host.rest, self.manifest
        while (gpus := self._host.gpus.take(self.node, wanted_gpus(pod))) is None:
            self._pause(_TICK_S)
        self._facts.gpus = gpus
        self._facts.claimed = claimed_devices(rest, pod)
        number = next(self._host.numbers)
        self.sandbox = Sandbox(self.name, number, self._host.hosts, self.folder)
        self._facts.address = self.sandbox.address
        self.report()
        folder = self.folder / "volumes"
        return self._insist(
            lambda: fill_volumes(rest, pod, self._facts, folder), "ContainerCreating"
        )

    def _run_inits(self, volumes: Mapping[str, Path]) -> bool:
        """Whether all of them ended well."""
        for spec in self.manifest["spec"].get("initContainers", ()):
            container = self._make(spec, self._inits)
            for attempt in itertools.count():
                self._start(container, volumes)
                self.report()
                while not container.poll():
                    self._pause(_TICK_S)
                assert container.ended is not None
                if container.ended.exit_code == 0:
                    break
                if self.manifest["spec"].get("restartPolicy") == "Never":
                    self.phase = "Failed"
                    return False
                self._back_off(container, attempt)
                self._pause(_backoff_s(attempt))
        return True

    def _run(self, volumes: Mapping[str, Path]) -> None:
        for spec in self.manifest["spec"]["containers"]:
            self._start(self._make(spec, self.containers), volumes)
        self.phase = "Running"
        self.report()
        again: dict[str, float] = {}
        while not self._is_over(again):
            self._pause(_TICK_S)
            for container in self.containers:
                if container.poll():
                    if self._restarts(container):
                        attempt = container.runs - 1
                        again[container.name] = time.monotonic() + _backoff_s(attempt)
                        self._back_off(container, attempt)
                    self.report()
                elif again.get(container.name, float("inf")) <= time.monotonic():
                    del again[container.name]
                    self._start(container, volumes)
                    self.report()
        self.phase = self._final_phase()

    def _is_over(self, again: Mapping[str, float]) -> bool:
        return not again and not any(c.running for c in self.containers)

    def _final_phase(self) -> str:
        codes = [c.ended.exit_code for c in self.containers if c.ended is not None]
        well = len(codes) == len(self.manifest["spec"]["containers"]) and not any(codes)
        return "Succeeded" if well and not self._failed else "Failed"

    def _restarts(self, container: Container) -> bool:
        policy = self.manifest["spec"].get("restartPolicy", "Always")
        assert container.ended is not None
        failed = container.ended.exit_code != 0
        return policy == "Always" or (policy == "OnFailure" and failed)

    def _make(self, spec: Mapping[str, Any], into: list[Container]) -> Container:
        assert self.sandbox is not None
        path = self.folder / f"{spec['name']}.log"
        container = Container(spec, self.sandbox, path, self.uid)
        into.append(container)
        return container

    def _start(self, container: Container, volumes: Mapping[str, Path]) -> None:
        env = self._insist(
            lambda: container_env(
                self._host.rest,
                self.manifest,
                container.spec,
                self._facts,
                self._host.extra_env,
            ),
            "CreateContainerConfigError",
        )
        mounts = mount_script(container.spec, volumes, self._host.points)
        with self._lock:
            self._pause(0)
            self._waiting.pop(container.name, None)
            container.start(env, mounts)
        start_probes(container, self._facts.address, self.report, self.stopping)

    def _back_off(self, container: Container, attempt: int) -> None:
        message = f"back-off {_backoff_s(attempt):g}s restarting container {container.name}"
        self._waiting[container.name] = Waiting("CrashLoopBackOff", message)
        self.report()

    def _insist(self, make: Callable[[], T], reason: str) -> T:
        """What ``make`` returns, as soon as nothing that it needs is missing any more."""
        names = [c["name"] for c in self.manifest["spec"]["containers"]]
        while True:
            try:
                return make()
            except ApiError as error:
                if error.status not in (404, 403):
                    raise
                log.warning("pod %s waits: %s", self.name, error)
                self._waiting.update(dict.fromkeys(names, Waiting(reason, str(error))))
                self.report()
                self._pause(_RETRY_S)

    def _pause(self, seconds: float) -> None:
        """Raises ``_Stopped`` if the pod's life is over."""
        if self.stopping.wait(seconds) or self._failed:
            raise _Stopped

    # -- end -----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._life.join()
        ends = [
            threading.Thread(target=self._stop, args=(container,), daemon=True)
            for container in [*self._inits, *self.containers]
            if container.running
        ]
        for thread in ends:
            thread.start()
        for thread in ends:
            thread.join()
        if self.phase not in ("Succeeded", "Failed"):
            self.phase = self._final_phase()
        self._close()
        self.report()
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        with suppress(ApiError):  # gone already, or another one by that name
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
            self._host.rest.delete(path, body)

    def _stop(self, container: Container) -> None:
        assert self._deadline is not None
        self._pre_stop(container, self._deadline - time.monotonic())
        with self._lock:
            self._deadline = max(self._deadline, time.monotonic() + _LEAST_GRACE_S)
        container.terminate()
        while not container.poll() and container.running and time.monotonic() < self._deadline:
            time.sleep(_TICK_S / 2)
        container.kill()
        container.poll()
        self.report()

    def _pre_stop(self, container: Container, grace_s: float) -> None:
        hook = container.spec.get("lifecycle", {}).get("preStop", {})
        with suppress(subprocess.TimeoutExpired, ProcessLookupError):
            if "exec" in hook:
                container.exec(hook["exec"]["command"], grace_s)
            elif "sleep" in hook:
                time.sleep(min(hook["sleep"]["seconds"], grace_s))

    def _close(self) -> None:
        """Frees what it held; safe to repeat."""
        with self._lock:
            if self.sandbox is not None:
                self.sandbox.close()
            self._host.gpus.give_back(self.node, self._facts.gpus)
            self._facts.gpus = []

    # -- report --------------------------------------------------------------------------------

    def report(self) -> None:
        """Tells the API server how it is, and the names that depend on it."""
        if not self._silent:
            with self._reporting:
                path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}/status"
                body = {"metadata": {"uid": self.uid}, "status": self._status()}
                try:
                    self._host.rest.patch(path, body, STRATEGIC)
                except ApiError as error:
                    if error.status not in (404, 409):  # deleted, or another one by that name
                        log.warning("status of pod %s: %s", self.name, error)
        self._host.names_changed()

    def _status(self) -> dict[str, Any]:
        spec = self.manifest["spec"]
        inits, containers = spec.get("initContainers", ()), spec["containers"]
        done = sum(c.ended is not None and c.ended.exit_code == 0 for c in self._inits)
        self._conditions = conditions(
            initialized=done == len(inits),
            ready=self.ready,
            phase=self.phase,
            before=self._conditions,
            at=utc_now(),
        )
        return {
            "phase": self.phase,
            "reason": self._failed or None,
            "hostIP": GATEWAY,
            "podIP": self._facts.address or None,
            "podIPs": [{"ip": self._facts.address}] if self._facts.address else None,
            "startTime": self._started_at,
            "conditions": self._conditions,
            "initContainerStatuses": self._statuses(inits, self._inits),
            "containerStatuses": self._statuses(containers, self.containers),
        }

    def _statuses(
        self, specs: list[Mapping[str, Any]], made: list[Container]
    ) -> list[dict[str, Any]]:
        by_name = {container.name: container for container in made}
        found = []
        for spec in specs:
            name = spec["name"]
            waiting = self._waiting.get(name)
            if name in by_name:
                found.append(container_status(by_name[name], waiting))
            else:
                found.append(unmade_status(spec, waiting or Waiting()))
        return found


class _Stopped(Exception):
    """The pod's life is over; ``_end`` or ``fail`` does the rest."""


def _backoff_s(attempt: int) -> float:
    return _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
