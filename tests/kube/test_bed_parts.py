"""Parts of the test cluster that need no cluster."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kube.bed import BedError, binaries, private, redis
from tests.kube.bed.audit import Audit
from tests.kube.bed.devices import Gpus, wanted_gpus
from tests.kube.bed.environment import expand
from tests.kube.bed.names import HostsFile, Named, hosts_text
from tests.kube.bed.nodes import NodeSpec, node_status, parse_nodes, quantity
from tests.kube.bed.process import Process
from tests.kube.bed.volumes import MountPoints


def test_nodes_are_read_from_one_line() -> None:
    nodes = parse_nodes(
        "a:cpu=8,mem=32; b:gpu=4,dra=2,label/x.io/zone=z,taint/nvidia.com/gpu=yes;c"
    )
    assert list(nodes) == ["a", "b", "c"]
    assert nodes["a"] == NodeSpec("a", cpu=8, mem=32)
    assert nodes["b"].labels == {"x.io/zone": "z"}
    assert nodes["b"].taints == {"nvidia.com/gpu": "yes"}
    assert (nodes["b"].gpu, nodes["b"].dra) == (4, 2)


@pytest.mark.parametrize("text", ["", "a:gpus=4", "a:cpu=many", "a;a", ":cpu=1", "a:colour/x=y"])
def test_what_is_no_node_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="node"):
        parse_nodes(text)


def test_a_node_without_gpus_does_not_offer_any() -> None:
    status = node_status(NodeSpec("a"), "10.0.0.1", "now")
    assert "nvidia.com/gpu" not in status["allocatable"]
    with_gpus = node_status(NodeSpec("a", gpu=2), "10.0.0.1", "now")
    assert with_gpus["allocatable"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", "2"), ("500m", "0.5"), ("1Ki", "1024"), ("1.5Gi", "1610612736"), ("2M", "2000000")],
)
def test_quantities(text: str, number: str) -> None:
    assert quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "1Q", "one"])
def test_no_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)


def service(name: str, selector: dict[str, str] | None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default"}
    return {"metadata": meta, "spec": {"selector": selector, **spec}}


def names(text: str) -> dict[str, str]:
    pairs = (line.split() for line in text.splitlines())
    return {name: address for address, *found in pairs for name in found}


def test_a_service_is_found_at_a_ready_pod() -> None:
    pods = [
        Named("p0", "default", "198.18.1.1", {"app": "web"}, ready=False),
        Named("p1", "default", "198.18.1.2", {"app": "web", "more": "x"}, ready=True),
        Named("p2", "other", "198.18.1.3", {"app": "web"}, ready=True),
    ]
    found = names(hosts_text([service("web", {"app": "web"}), service("none", None)], pods))
    assert found["web"] == found["web.default.svc.cluster.local"] == "198.18.1.2"
    assert found["p0"] == "198.18.1.1"
    assert "none" not in found
    assert found["kubernetes.default.svc"] == "198.18.0.1"


def test_a_service_may_have_names_before_its_pod_is_ready() -> None:
    pods = [Named("p0", "default", "198.18.1.1", {"app": "web"}, ready=False)]
    assert "web" not in names(hosts_text([service("web", {"app": "web"})], pods))
    early = service("web", {"app": "web"}, publishNotReadyAddresses=True)
    assert names(hosts_text([early], pods))["web"] == "198.18.1.1"


def test_the_hosts_file_stays_the_same_file(tmp_path: Path) -> None:
    hosts = HostsFile(tmp_path / "hosts")
    before = hosts.path.stat().st_ino
    hosts.write("1.2.3.4 a-long-name\n")
    hosts.write("1.2.3.4 b\n")
    assert hosts.path.read_text() == "1.2.3.4 b\n"
    assert hosts.path.stat().st_ino == before


def test_gpus_are_handed_out_once() -> None:
    gpus = Gpus(parse_nodes("a:gpu=3").values())
    assert gpus.take("a", 2) == ["GPU-a-0", "GPU-a-1"]
    assert gpus.take("a", 2) is None
    gpus.give_back("a", ["GPU-a-1"])
    assert gpus.take("a", 2) == ["GPU-a-1", "GPU-a-2"]


def test_gpus_of_all_containers_count() -> None:
    asks = {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}}
    assert wanted_gpus({"spec": {"containers": [asks, {}, asks]}}) == 4


def test_variables_are_put_in() -> None:
    assert expand("$(A)/$(B)/$$(A)/$A", {"A": "1"}) == "1/$(B)/$(A)/$A"


def test_mount_points_go_again(tmp_path: Path) -> None:
    # as if below a folder that pods share with the machine
    points = MountPoints(own=())
    points.make(tmp_path / "there" / "deep", is_file=False)
    points.make(tmp_path / "there" / "file", is_file=True)
    assert (tmp_path / "there" / "deep").is_dir() and (tmp_path / "there" / "file").is_file()
    points.remove()
    assert not (tmp_path / "there").exists() and tmp_path.exists()


def audit_line(number: int, user: str, agent: str, **more: Any) -> str:
    event = {
        "auditID": str(number),
        "user": {"username": user},
        "userAgent": agent,
        "verb": "get",
        "requestURI": "/api/v1/pods/x",
        "objectRef": {"resource": "pods", "subresource": "status", "name": "x"},
        "responseStatus": {"code": 200},
    }
    return json.dumps({**event, **more}) + "\n"


def test_audited_requests_count_once_and_from_a_moment_on(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    audit = Audit(log)
    assert audit.now() == 0
    log.write_text(audit_line(1, "admin", "curl"))
    since = audit.now()
    with open(log, "a") as file:
        file.write(audit_line(2, "admin", "firepool/1") + audit_line(3, "kubelet", "bed"))
        file.write(audit_line(2, "admin", "firepool/1", verb="watch") + '{"half')
    assert audit.count_by_user() == {"admin": 2, "kubelet": 1}
    (request,) = audit.requests(since, agent="firepool")
    assert (request.resource, request.name, request.code) == ("pods/status", "x", 200)


def test_a_program_that_ended_is_told_with_its_log(tmp_path: Path) -> None:
    process = Process("lost", ["bash", "-c", "echo why; exit 7"], tmp_path / "log")
    process.wait(10.0)
    with pytest.raises(BedError, match=r"(?s)lost ended with code 7.*why"):
        process.check()
    process.kill()


def test_a_bed_is_refused_where_it_would_change_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FIREPOOL_BED_SCRATCH", raising=False)
    with pytest.raises(BedError, match="enter"):
        private.scratch()


def test_programs_are_named_by_what_they_are_built_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FIREPOOL_BED_CACHE", str(tmp_path))
    assert binaries.path_of("kuberay") == tmp_path / "kuberay-1.5.0"
    assert binaries.path_of("controlplane").name.startswith("controlplane-1.34.4-")
    assert not binaries.is_built("etcd")


@pytest.mark.parametrize(
    ("uid", "path", "said"),
    [(1000, "/usr/bin:/usr/sbin", "root"), (0, "/nowhere", "iproute2")],
)
def test_what_is_missing_is_said_in_one_line(
    uid: int, path: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FIREPOOL_BED_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr("os.geteuid", lambda: uid)
    with pytest.raises(BedError, match=said) as caught:
        binaries.build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "said"), [(None, "no command go"), ("echo go version go1.22.1 linux", "go1.22")]
)
def test_an_old_or_absent_go_is_said_in_one_line(
    script: str | None, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FIREPOOL_BED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "missing_tool", lambda: None)
    if script is not None:
        (tmp_path / "go").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    with pytest.raises(BedError, match=said) as caught:
        binaries.build()
    assert "\n" not in str(caught.value)


def test_redis_is_the_machines_own_or_cannot_be_had_without_apt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FIREPOOL_BED_CACHE", str(tmp_path))
    monkeypatch.setattr(redis.shutil, "which", lambda program: None)
    with pytest.raises(BedError, match="no apt-get to fetch it with: install your distribution's"):
        redis.fetch()
    monkeypatch.setattr(redis.shutil, "which", lambda program: f"/usr/bin/{program}")
    redis.fetch()
    assert not redis.folder().exists()


def test_redis_that_cannot_be_downloaded_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once with the package lists that are there, once with new ones."""
    monkeypatch.setenv("FIREPOOL_BED_CACHE", str(tmp_path))
    there = {"apt-get", "dpkg"}
    monkeypatch.setattr(redis.shutil, "which", lambda program: program in there or None)
    asked: list[str] = []

    def apt(*argv: str, where: Path) -> str:
        asked.append(argv[0])
        return "E: no network"

    monkeypatch.setattr(redis, "_apt", apt)
    with pytest.raises(BedError, match="install it yourself: E: no network"):
        redis.fetch()
    assert asked == ["download", "update", "download"]
