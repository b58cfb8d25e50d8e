"""etcd, API server, scheduler and controller manager, each as one process, on a bridge.

Every program has a user of its own, so that the audit log tells them apart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from tests.kube.bed import binaries
from tests.kube.bed.process import BedError, Process, command
from tests.kube.bed.rest import ApiError, Rest

#: The API server's and all nodes' address; pods have their own in the same network.
GATEWAY = "198.18.0.1"
PORT = 443
SERVER = f"https://{GATEWAY}:{PORT}"
BRIDGE = "bed0"
#: What tests are, in the audit log and for RBAC.
ADMIN = "admin"
USERS = (ADMIN, "kubelet", "scheduler", "controller-manager", "kuberay", "kueue")
#: A node whose heartbeats stop counts as not ready after this.
NODE_GRACE_S = 16
_READY_S = 90.0

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlane:
    """The programs that every cluster has, in the current network namespace."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[Process] = []
        self.audit_log = directory / "audit.log"
        self.ca = directory / "certs" / "apiserver.crt"

    def start(self) -> None:
        """Returns once the API server is ready; raises ``BedError`` if a program ends."""
        _make_bridge()
        self._write_credentials()
        etcd = [str(binaries.path_of("etcd")), "--unsafe-no-fsync", "--log-level=warn"]
        self.run("etcd", [*etcd, f"--data-dir={self.directory / 'etcd'}"])
        self._run_part("apiserver", self._apiserver_flags())
        self._wait_ready()
        for part, flags in {
            "scheduler": [],
            "controller-manager": [
                f"--service-account-private-key-file={self.directory / 'accounts.key'}",
                f"--root-ca-file={self.ca}",
                f"--node-monitor-grace-period={NODE_GRACE_S}s",
            ],
        }.items():
            common = [f"--kubeconfig={self.kubeconfig(part)}", "--leader-elect=false"]
            self._run_part(part, [*common, "--secure-port=0", *flags])

    def run(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> Process:
        """Starts one more program that ``check`` and ``stop`` care for."""
        process = Process(name, argv, self.directory / f"{name}.log", env)
        self.processes.append(process)
        return process

    def check(self) -> None:
        """Raises ``BedError`` with the end of a program's log if one has ended."""
        for process in self.processes:
            process.check()

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
        self.processes.clear()
        command("ip", "link", "delete", BRIDGE)

    def program(self, name: str) -> Process:
        """By name; raises ``KeyError`` if there is none."""
        return {process.name: process for process in self.processes}[name]

    def rest(self, user: str, patience_s: float = 0.0) -> Rest:
        return Rest(SERVER, self.ca, _token(user), f"bed-{user}", patience_s)

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"kubeconfig-{user}"

    def _run_part(self, part: str, flags: list[str]) -> None:
        self.run(part, [str(binaries.path_of("controlplane")), part, *flags])

    def _apiserver_flags(self) -> list[str]:
        at = self.directory
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            "--service-cluster-ip-range=198.19.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={at / 'accounts.key'}",
            f"--service-account-signing-key-file={at / 'accounts.key'}",
            f"--cert-dir={at / 'certs'}",
            "--bind-address=0.0.0.0",
            f"--secure-port={PORT}",
            f"--advertise-address={GATEWAY}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={at / 'tokens.csv'}",
            "--allow-privileged=true",
            f"--audit-log-path={self.audit_log}",
            f"--audit-policy-file={at / 'audit-policy.json'}",
        ]

    def _write_credentials(self) -> None:
        at = self.directory
        command("openssl", "genrsa", "-out", at / "accounts.key", "2048")
        (at / "audit-policy.json").write_text(json.dumps(_AUDIT_POLICY))
        rows = [f'{_token(user)},{user},{user},"system:masters"' for user in USERS]
        (at / "tokens.csv").write_text("\n".join(rows) + "\n")
        for user in USERS:
            self.kubeconfig(user).write_text(json.dumps(self._config_of(user)))

    def _config_of(self, user: str) -> dict[str, object]:
        cluster = {"server": SERVER, "certificate-authority": str(self.ca)}
        context = {"cluster": "bed", "user": user, "namespace": "default"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bed",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": _token(user)}}],
            "contexts": [{"name": "bed", "context": context}],
        }

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        problem: Exception | None = None
        while time.monotonic() < deadline:
            self.check()
            try:
                if self.ca.exists():
                    self.rest("kubelet").get("/readyz", timeout_s=2.0)
                    return
            except (ApiError, OSError) as error:
                problem = error
            time.sleep(0.1)
        tail = self.processes[-1].tail()
        raise BedError(f"the API server is not ready ({problem}); its log ends:\n{tail}")


def _token(user: str) -> str:
    return f"token-of-{user}"


def _make_bridge() -> None:
    command("ip", "link", "set", "lo", "up")
    command("ip", "link", "add", BRIDGE, "type", "bridge")
    # without an address of its own it takes a pod's, and connections hang when pods come and go
    command("ip", "link", "set", BRIDGE, "address", "02:be:d0:00:00:01")
    command("ip", "addr", "add", f"{GATEWAY}/16", "dev", BRIDGE)
    command("ip", "link", "set", BRIDGE, "up")
