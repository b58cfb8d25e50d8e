"""What can go wrong, on demand. Pods are named without a namespace: it is ``default``."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kube.bed.controlplane import ControlPlane
from tests.kube.bed.kubelet import Kubelet
from tests.kube.bed.process import BedError
from tests.kube.bed.rest import Rest

_PODS = "/api/v1/namespaces/default/pods"


class Faults:
    """The menu. Each returns when the fault is there, not when its consequences are."""

    def __init__(self, kubelet: Kubelet, plane: ControlPlane, rest: Rest) -> None:
        self._kubelet = kubelet
        self._plane = plane
        self._rest = rest

    def kill_pod(self, name: str) -> None:
        """SIGKILL to all of its processes; the pod's phase becomes Failed."""
        self._kubelet.pod(name).fail("Killed")

    def kill_node(self, name: str) -> None:
        """Its pods die and its heartbeats stop: what is known of them stays as it was.

        The node is not ready some 20 s later; its pods are deleted once they have tolerated that
        for 300 s, unless they say otherwise.
        """
        if name not in self._kubelet.nodes:
            raise KeyError(f"no node {name!r}; there are {sorted(self._kubelet.nodes)}")
        self._kubelet.kill_node(name)

    def remove_node(self, name: str) -> None:
        """As ``kill_node``, and the cloud says so: its object goes, its pods' a minute later."""
        self.kill_node(name)
        self._rest.delete(f"/api/v1/nodes/{name}")

    def cut_network(self, name: str) -> None:
        """Packets from and to the pod are lost without a word; it goes on to run."""
        self._sandbox(name).cut()

    def mend_network(self, name: str) -> None:
        self._sandbox(name).mend()

    def delete_pod(self, name: str, grace_s: float | None = None) -> None:
        """Deletes it through the API; without ``grace_s`` with its own grace period."""
        body: dict[str, Any] = {} if grace_s is None else {"gracePeriodSeconds": int(grace_s)}
        self._rest.delete(f"{_PODS}/{name}", body)

    def evict(self, name: str) -> None:
        """As ``kubectl drain`` does; raises ``ApiError`` 429 if a disruption budget forbids it."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"},
        }
        self._rest.post(f"{_PODS}/{name}/eviction", eviction)

    def pause_process(self, name: str, pattern: str) -> list[int]:
        """SIGSTOP to the pod's processes whose command line matches; returns them.

        Raises ``BedError`` if none does.
        """
        return self._signal(name, pattern, signal.SIGSTOP)

    def resume_process(self, name: str, pattern: str) -> list[int]:
        return self._signal(name, pattern, signal.SIGCONT)

    def pause_program(self, name: str) -> None:
        """SIGSTOP to etcd, apiserver, scheduler, controller-manager, kuberay or kueue."""
        self._plane.program(name).signal(signal.SIGSTOP)

    def resume_program(self, name: str) -> None:
        self._plane.program(name).signal(signal.SIGCONT)

    def _signal(self, name: str, pattern: str, number: int) -> list[int]:
        lines = {
            pid: _command_line(pid)
            for container in self._kubelet.pod(name).containers
            for pid in container.pids()
        }
        found = [pid for pid, line in lines.items() if re.search(pattern, line)]
        if not found:
            raise BedError(f"no process of pod {name} matches {pattern!r}: {lines}")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return found

    def _sandbox(self, name: str) -> Any:
        sandbox = self._kubelet.pod(name).sandbox
        if sandbox is None:
            raise BedError(f"pod {name} has no network yet")
        return sandbox


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
