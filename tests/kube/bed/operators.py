"""KubeRay's operator and Kueue, with their custom resource definitions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.kube.bed import binaries
from tests.kube.bed.controlplane import GATEWAY, ControlPlane
from tests.kube.bed.process import BedError, command
from tests.kube.bed.rest import Rest

_ESTABLISHED_S = 60.0
_DEFINITION_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

#: Webhooks are left out: objects carry every field that defaulting would fill, RayClusters
#: under Kueue are created with ``suspend: true``.
_KUEUE = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":18091"},
    "metrics": {"bindAddress": ":18092"},
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": False},
    "integrations": {"frameworks": ["batch/job", "ray.io/rayjob", "ray.io/raycluster"]},
}


def start_kuberay(plane: ControlPlane, rest: Rest) -> None:
    """Returns once RayClusters can be created."""
    define(rest, binaries.definitions("kuberay"))
    plane.run(
        "kuberay",
        [
            str(binaries.path_of("kuberay")),
            "--enable-leader-election=false",
            "--metrics-addr=127.0.0.1:18080",
            "--health-probe-bind-address=127.0.0.1:18082",
        ],
        {"KUBECONFIG": str(plane.kubeconfig("kuberay"))},
    )


def start_kueue(plane: ControlPlane, rest: Rest) -> None:
    """Returns once queues can be created. Elastic RayClusters are on."""
    define(rest, binaries.definitions("kueue"))
    rest.post("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
    folder = plane.directory / "kueue"
    folder.mkdir()
    _self_signed(folder)
    webhook = {"port": 19443, "certDir": str(folder)}
    config = folder / "config.json"
    config.write_text(json.dumps({**_KUEUE, "webhook": webhook}))
    gates = "VisibilityOnDemand=false,ElasticJobsViaWorkloadSlices=true"
    argv = [str(binaries.path_of("kueue")), f"--config={config}", f"--feature-gates={gates}"]
    # the folder of the metrics' certificate is fixed: give it a private /etc that has it
    own_etc = (
        "mkdir own && mount -t tmpfs tmpfs own && mkdir own/upper own/work"
        " && mount -t overlay overlay -o lowerdir=/etc,upperdir=own/upper,workdir=own/work /etc"
        " && mkdir -p /etc/kueue/metrics/certs && cp tls.* /etc/kueue/metrics/certs/"
        ' && exec "$@"'
    )
    plane.run(
        "kueue",
        ["unshare", "--mount", "bash", "-c", f"cd {folder} && {own_etc}", "bash", *argv],
        {"KUBECONFIG": str(plane.kubeconfig("kueue")), "POD_NAMESPACE": "kueue-system"},
    )


def define(rest: Rest, definitions: Iterable[Mapping[str, object]]) -> None:
    """Creates custom resource definitions and waits until they can be used."""
    names = []
    for definition in definitions:
        names.append(rest.post(_DEFINITION_PATH, definition)["metadata"]["name"])
    deadline = time.monotonic() + _ESTABLISHED_S
    while names:
        names = [name for name in names if not _is_usable(rest.get(f"{_DEFINITION_PATH}/{name}"))]
        if names and time.monotonic() > deadline:
            raise BedError(f"not established: {names}")
        time.sleep(0.1 if names else 0)


def _is_usable(definition: Mapping[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _self_signed(folder: Path) -> None:
    command(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-keyout", folder / "tls.key", "-out", folder / "tls.crt"),
        *("-subj", "/CN=kueue", "-addext", f"subjectAltName=IP:{GATEWAY}"),
    )
