"""``Bed``: one whole cluster for the length of a ``with`` block."""

from __future__ import annotations

import logging
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kubernetes import client, config

from tests.kube.bed import binaries, operators, private, schedulers
from tests.kube.bed.audit import Audit
from tests.kube.bed.controlplane import ADMIN, ControlPlane
from tests.kube.bed.faults import Faults
from tests.kube.bed.kubelet import Kubelet
from tests.kube.bed.names import HostsFile
from tests.kube.bed.nodes import DEFAULT_NODES, parse_nodes
from tests.kube.bed.process import BedError, command
from tests.kube.bed.rest import Object, Rest

T = TypeVar("T")

#: Of every pod: gRPC otherwise asks a name server instead of /etc/hosts.
_POD_ENV = {"GRPC_DNS_RESOLVER": "native"}
_POLL_S = 0.1
#: Kubelets bear with an API server that is away for this long.
_PATIENCE_S = 300.0
_ACCOUNT_S = 30.0


class Bed:
    """A cluster in the current private namespaces; everything of it ends with the block."""

    directory: Path  #: logs of everything; pods see it by the same name
    kubeconfig: Path  #: of an administrator
    core: client.CoreV1Api
    custom: client.CustomObjectsApi
    api: client.ApiClient
    faults: Faults
    audit: Audit

    def __init__(
        self,
        nodes: str = DEFAULT_NODES,
        *,
        operator: bool = True,
        kueue: bool = False,
        pod_env: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> None:
        """``pod_env`` is added to every container's environment; ``keep`` leaves the directory."""
        self._nodes = parse_nodes(nodes)
        self._operator = operator
        self._kueue = kueue
        self._pod_env = {**_POD_ENV, **(pod_env or {})}
        self._keep = keep
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Bed:
        scratch = private.scratch()
        wanted = ["etcd", "controlplane"]
        binaries.require(*wanted, *["kuberay"] * self._operator, *["kueue"] * self._kueue)
        where = private.OUTSIDE_TMP if self._keep else scratch
        self.directory = Path(tempfile.mkdtemp(prefix="bed-", dir=where))
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all of it, in the opposite order; safe to repeat."""
        while self._undo:
            self._undo.pop()()
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- what tests do -------------------------------------------------------------------------

    def apply(self, manifests: Iterable[Object]) -> list[Object]:
        """Creates or changes objects, in order; returns what the API server made of them."""
        return [self._rest.apply(manifest) for manifest in manifests]

    def define(self, scheduler: str) -> None:
        """Lets the objects of "kai" or "volcano" be created; nothing acts on them."""
        operators.define(self._rest, schedulers.definitions(scheduler))

    def pods(self, selector: str = "") -> list[client.V1Pod]:
        """Of the default namespace, by a label selector."""
        found: list[client.V1Pod] = self.core.list_namespaced_pod(
            "default", label_selector=selector
        ).items
        return found

    def pod(self, name: str) -> client.V1Pod | None:
        """By name, if there is one."""
        return next((pod for pod in self.pods() if pod.metadata.name == name), None)

    def wait_for(self, predicate: Callable[[], T], timeout_s: float, what: str) -> T:
        """The first true result; raises ``BedError`` that shows pods and events otherwise.

        A program of the cluster that ends is an error at once.
        """
        deadline = time.monotonic() + timeout_s
        while not (result := self._ask(predicate)):
            self.check()
            if time.monotonic() > deadline:
                raise BedError(f"no {what} after {timeout_s:g} s\n{self.describe()}")
            time.sleep(_POLL_S)
        return result

    def _ask(self, predicate: Callable[[], T]) -> T:
        try:
            return predicate()
        except Exception:
            self.check()  # a program that has ended explains it better
            raise

    def wait_ready(self, name: str, timeout_s: float = 30.0) -> client.V1Pod:
        """The pod, once its condition Ready holds."""

        def ready() -> client.V1Pod | None:
            pod = self.pod(name)
            return pod if pod is not None and is_ready(pod) else None

        pod = self.wait_for(ready, timeout_s, f"ready pod {name}")
        assert pod is not None
        return pod

    def exec(
        self,
        pod_name: str,
        argv: Sequence[str],
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        container: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a pod's container (the first one) with that one's environment.

        Raises ``subprocess.TimeoutExpired`` with what it printed, after ending it.
        """
        return self._kubelet.pod(pod_name).container(container).exec(argv, timeout_s, env)

    def pod_log(self, name: str, container: str | None = None) -> str:
        """All that the containers of the last pod of that name printed, which may be gone."""
        files = sorted(self._kubelet.folder(name).glob(f"{container or '*'}.log"))
        return "".join(file.read_text(errors="replace") for file in files)

    def head_pod(self, cluster: str) -> client.V1Pod | None:
        """Of a RayCluster, if it has one."""
        found = self.pods(f"ray.io/cluster={cluster},ray.io/node-type=head")
        living = [pod for pod in found if pod.metadata.deletion_timestamp is None]
        return living[0] if living else None

    def wait_head(self, cluster: str, timeout_s: float = 60.0) -> client.V1Pod:
        """A RayCluster's head pod, once it is ready."""

        def ready() -> client.V1Pod | None:
            head = self.head_pod(cluster)
            return head if head is not None and is_ready(head) else None

        head = self.wait_for(ready, timeout_s, f"ready head of {cluster}")
        assert head is not None
        return head

    def head_address(self, cluster: str) -> str:
        """IP address of the head; its ports are reachable from here."""
        head = self.head_pod(cluster)
        if head is None or not head.status.pod_ip:
            raise BedError(f"RayCluster {cluster} has no head\n{self.describe()}")
        address: str = head.status.pod_ip
        return address

    def check(self) -> None:
        """Raises ``BedError`` with the end of its log if a program of the cluster has ended."""
        self._plane.check()

    def describe(self) -> str:
        """Pods, their states and the last events, for error messages."""
        lines = ["pods:"]
        for pod in self.core.list_pod_for_all_namespaces().items:
            lines.append(f"  {_line_of(pod)}")
        lines.append("last events:")
        events = self.core.list_event_for_all_namespaces().items
        events.sort(key=lambda e: str(e.last_timestamp or e.event_time or ""))
        for event in events[-15:]:
            lines.append(f"  {event.involved_object.name}: {event.reason}: {event.message}")
        return "\n".join([*lines, f"logs: {self.directory}"])

    # -- start ---------------------------------------------------------------------------------

    def _start(self) -> None:
        self._log_to(self.directory / "kubelet.log")
        self._plane = ControlPlane(self.directory)
        self._undo.append(self._plane.stop)
        self._plane.start()
        self._connect()
        self._rest: Rest = self._plane.rest(ADMIN)
        hosts = HostsFile(self.directory / "hosts")
        command("mount", "--bind", hosts.path, "/etc/hosts")  # operators resolve names too
        self._undo.append(lambda: command("umount", "/etc/hosts"))
        rest = self._plane.rest("kubelet", _PATIENCE_S)
        self._kubelet = Kubelet(rest, self._nodes, self.directory, hosts, self._pod_env)
        self._undo.append(self._kubelet.stop)
        self._kubelet.start()
        self.faults = Faults(self._kubelet, self._plane, self._rest)
        self.audit = Audit(self._plane.audit_log)
        if self._operator:
            operators.start_kuberay(self._plane, self._rest)
        if self._kueue:
            operators.start_kueue(self._plane, self._rest)
        self._await_account()

    def _connect(self) -> None:
        self.kubeconfig = self._plane.kubeconfig(ADMIN)
        self.api = config.new_client_from_config(str(self.kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self.custom = client.CustomObjectsApi(self.api)
        self._undo.append(self.api.close)

    def _await_account(self) -> None:
        """Pods are refused until the default namespace has its account and certificates."""

        def made() -> bool:
            try:
                self.core.read_namespaced_service_account("default", "default")
                self.core.read_namespaced_config_map("kube-root-ca.crt", "default")
            except client.ApiException:
                return False
            return True

        self.wait_for(made, _ACCOUNT_S, "service account in the default namespace")

    def _log_to(self, path: Path) -> None:
        logger = logging.getLogger("tests.kube.bed")
        handler = logging.FileHandler(path)
        logger.addHandler(handler)
        self._undo += [handler.close, lambda: logger.removeHandler(handler)]


def is_ready(pod: client.V1Pod) -> bool:
    """Whether it is meant to stay and its condition Ready holds."""
    held = {c.type for c in pod.status.conditions or () if c.status == "True"}
    return pod.metadata.deletion_timestamp is None and "Ready" in held


def _line_of(pod: client.V1Pod) -> str:
    states = []
    for status in [
        *(pod.status.init_container_statuses or ()),
        *(pod.status.container_statuses or ()),
    ]:
        state = status.state
        if state.running:
            told = "ready" if status.ready else "running"
        elif state.terminated:
            told = f"ended {state.terminated.exit_code}"
        else:
            told = f"{state.waiting.reason} {state.waiting.message or ''}" if state.waiting else "?"
        states.append(f"{status.name} {told}".strip())
    conditions = [c.message for c in pod.status.conditions or () if c.message]
    going = ", deleted" if pod.metadata.deletion_timestamp else ""
    why = f" {pod.status.reason}" if pod.status.reason else ""
    where = f"{pod.metadata.namespace}/{pod.metadata.name} on {pod.spec.node_name}"
    return f"{where}: {pod.status.phase}{why}{going} ({'; '.join([*states, *conditions])})"
