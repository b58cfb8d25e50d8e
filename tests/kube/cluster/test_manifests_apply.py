"""``firepool kube`` against a real API server and Ray's real operator.

One small pool is brought up, looked at from inside under exactly the rendered rights, used by a
RayJob, changed, and taken away.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from firepool_ray.kube.api import KINDS, RAY_JOB, Kube, kind_of
from tests.kube.bed import Bed
from tests.kube.bed.bed import is_ready

NODES = "cpu-a:cpu=8,mem=32;gpu-a:cpu=8,mem=32,gpu=2,dra=2"
ROOT = Path(__file__).resolve().parents[3]
RENDERED = sorted((ROOT / "cluster_configs" / "rendered").glob("*.yaml"))
#: Kinds of the rendered files whose CRDs are not in the test cluster.
NOT_SERVED = {"PodMonitor"}
PATIENCE_S = 120.0

SMALL: dict[str, Any] = {
    "profiles": {
        "gpu": {"gpus": 1, "max_lanes": 2},
        "cpu": {"max_lanes": 2, "pod": {"memory": "3Gi", "min_pods": 1}},
    },
    "kubernetes": {
        "name": "small",
        "run_as_user": 0,
        "idle_timeout_s": 20,
        "drain_s": 5,
        "ray_start_params": {"object-store-memory": "200000000"},
    },
}

#: What the credentials of a pod may do, as its API server says.
_RIGHTS = """
import json
from firepool_ray.kube.api import KINDS, Kube
kube = Kube.connect()
kinds = [kind for kind in KINDS.values() if kube.serves(kind)]
verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
print("MAY", json.dumps([f"{v} {k.plural}" for k in kinds for v in verbs if kube.may(v, k)]))
"""


@pytest.fixture(autouse=True, scope="module")
def _credentials(bed: Bed) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(bed.kubeconfig))
        yield


@pytest.fixture(scope="module")
def kube(bed: Bed, _credentials: None) -> Kube:
    return Kube.connect()


def firepool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("firepool")
    return subprocess.run(
        [command, "kube", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def pool_file(folder: Path, pool: dict[str, Any]) -> str:
    path = folder / f"{pool['kubernetes']['name']}.yaml"
    path.write_text(yaml.safe_dump(pool, sort_keys=False))
    return str(path)


@pytest.fixture(scope="module")
def small(bed: Bed, _credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The pool file of a pool that is up; what ``down`` leaves is checked at the end."""
    file = pool_file(tmp_path_factory.mktemp("pool"), SMALL)
    done = firepool("up", "-f", file, "--timeout", str(PATIENCE_S))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{bed.describe()}"
    assert "RayCluster small is up" in done.stderr
    yield file
    firepool("down", "-f", file)


def pods_of(bed: Bed, group: str) -> list[Any]:
    found = bed.pods(f"ray.io/cluster=small,ray.io/group={group}")
    return [pod for pod in found if is_ready(pod)]


# ------------------------------------------------------------ the files of this repository


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_the_api_server_accepts_what_is_rendered(kube: Kube, path: Path) -> None:
    left_out = set()
    for manifest in yaml.safe_load_all(path.read_text()):
        if kube.serves(kind_of(manifest)):
            answer = kube.apply(manifest, dry_run=True)
            assert answer["metadata"]["name"] == manifest["metadata"]["name"]
        else:
            left_out.add(manifest["kind"])
    assert left_out <= NOT_SERVED


def test_a_field_that_the_server_does_not_know_is_not_dropped(kube: Kube) -> None:
    path = ROOT / "cluster_configs" / "rendered" / "autoscaled.yaml"
    cluster = list(yaml.safe_load_all(path.read_text()))[-1]
    cluster["spec"]["headGroupSpecs"] = {}
    with pytest.raises(Exception, match="headGroupSpecs"):
        kube.apply(cluster, dry_run=True)


# ------------------------------------------------------------ a pool that stands


def test_status_names_groups_and_pods(bed: Bed, small: str) -> None:
    done = firepool("status", "-f", small, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    groups = {row["group"]: (row["wanted"], row["ready"], row["max"]) for row in said["groups"]}
    assert groups["system"] == (1, 1, 1)
    assert groups["cpu"][1:] == (1, 2)
    assert groups["gpu"] == (0, 0, 2)
    running = {pod.metadata.name for pod in bed.pods("ray.io/cluster=small")}
    assert {pod["name"] for pod in said["pods"]} == running
    assert {pod["group"] for pod in said["pods"]} == {"headgroup", "system", "cpu"}


def test_the_doctor_finds_nothing_wrong(small: str) -> None:
    done = firepool("doctor", "-f", small)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {line.split()[0] for line in done.stdout.splitlines()}
    assert verdicts == {"ok"}, done.stdout


def test_the_doctor_tells_what_this_operator_does_not_know(small: str, tmp_path: Path) -> None:
    pool = {**SMALL, "kubernetes": {**SMALL["kubernetes"], "auth": "token"}}
    done = firepool("doctor", "-f", pool_file(tmp_path, pool))
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("problem")]
    assert line.startswith("problem  manifests: RayCluster small: ") and "authOptions" in line


def test_the_controllers_pod_reads_and_writes_nothing(bed: Bed, small: str) -> None:
    (system,) = pods_of(bed, "system")
    done = bed.exec(system.metadata.name, ["python", "-c", _RIGHTS])
    line = next((x for x in done.stdout.splitlines() if x.startswith("MAY ")), done.stderr)
    kinds = ("pods", "events", "rayclusters", "resourceclaims")
    allowed = {f"{verb} {kind}" for kind in kinds for verb in ("get", "list", "watch")}
    assert set(json.loads(line.removeprefix("MAY "))) == allowed


def test_a_pod_for_lanes_has_no_way_into_the_api(bed: Bed, small: str) -> None:
    token = ["test", "-e", "/var/run/secrets/kubernetes.io/serviceaccount/token"]
    for group in ("cpu", "headgroup"):
        (pod,) = pods_of(bed, group)
        done = bed.exec(pod.metadata.name, ["python", "-c", _RIGHTS])
        assert done.returncode != 0 and "no Kubernetes cluster is known" in done.stderr, done.stdout
        assert bed.exec(pod.metadata.name, token).returncode != 0
    (head,) = pods_of(bed, "headgroup")
    assert bed.exec(head.metadata.name, token, container="autoscaler").returncode == 0


def test_the_pool_runs_without_anybody_submitting_it(bed: Bed, small: str) -> None:
    (system,) = pods_of(bed, "system")

    def described() -> dict[str, Any] | None:
        done = bed.exec(system.metadata.name, ["firepool", "status", "--json"])
        return json.loads(done.stdout) if done.returncode == 0 else None

    said = bed.wait_for(described, PATIENCE_S, "running pool")
    assert said is not None
    assert {row["profile"] for row in said["profiles"]} == {"gpu", "cpu"}


def test_a_rayjob_runs_in_a_pod_for_drivers(bed: Bed, kube: Kube, small: str) -> None:
    code = "import os; print('DRIVER', os.uname().nodename)"
    done = firepool("render", "-f", small, "--rayjob", f'python -c "{code}"', "--name", "train")
    kube.apply(yaml.safe_load(done.stdout))

    def ended() -> str | None:
        job = kube.get(RAY_JOB, "train")
        state = (job or {}).get("status", {}).get("jobDeploymentStatus", "")
        return state if state in ("Complete", "Failed") else None

    assert bed.wait_for(ended, PATIENCE_S, "end of the RayJob") == "Complete", bed.describe()
    (submitter,) = bed.pods("batch.kubernetes.io/job-name=train")
    line = next(
        x for x in bed.pod_log(submitter.metadata.name).splitlines() if x.startswith("DRIVER ")
    )
    assert line.split()[1].startswith("small-drivers-")


def test_a_second_up_changes_bounds_and_leaves_pods_alone(
    bed: Bed, kube: Kube, small: str, tmp_path: Path
) -> None:
    before = {pod.metadata.name for pod in pods_of(bed, "cpu")}
    cpu = {**SMALL["profiles"]["cpu"], "max_lanes": 5}
    changed = {**SMALL, "profiles": {**SMALL["profiles"], "cpu": cpu}}
    file = pool_file(tmp_path, changed)
    assert firepool("doctor", "-f", file).returncode == 1
    done = firepool("up", "-f", file, "--timeout", str(PATIENCE_S))
    assert done.returncode == 0, done.stderr
    assert "RayCluster small changed" in done.stderr
    assert firepool("doctor", "-f", file).returncode == 0
    said = json.loads(firepool("status", "-f", file, "--json").stdout)
    assert next(row["max"] for row in said["groups"] if row["group"] == "cpu") == 5
    assert before <= {pod.metadata.name for pod in pods_of(bed, "cpu")}


def test_down_leaves_nothing(bed: Bed, kube: Kube, small: str) -> None:
    done = firepool("down", "-f", small)
    assert done.returncode == 0, done.stderr
    assert bed.pods() == []
    for kind in KINDS.values():
        if kube.serves(kind):
            found, _ = kube.list(kind, labels="firepool/pool=small")
            assert found == [], kind.kind


# ------------------------------------------------------------ pools of other kinds


def test_an_impossible_pool_is_told_in_the_schedulers_words(
    bed: Bed, kube: Kube, tmp_path: Path
) -> None:
    pool = {
        "profiles": {"gpu": {"gpus": 64, "max_lanes": 1, "pod": {"min_pods": 1}}},
        "kubernetes": {**SMALL["kubernetes"], "name": "huge"},
    }
    file = pool_file(tmp_path, pool)
    done = firepool("up", "-f", file, "--timeout", "15")
    assert done.returncode == 1
    assert "group gpu: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu" in done.stderr
    done = firepool("doctor", "-f", file)
    assert "problem  group gpu: no node has 64 nvidia.com/gpu (most: 2)" in done.stdout
    assert firepool("down", "-f", file).returncode == 0


def test_pods_of_two_images_hold_one_device(bed: Bed, kube: Kube, tmp_path: Path) -> None:
    shared = {"gpus": 1, "max_lanes": 1, "pod": {"sharing": "dra:gpu-0", "min_pods": 1}}
    settings = {**SMALL["kubernetes"], "name": "dra", "device_class": "gpu.bed"}
    settings["drivers"] = {"max_pods": 0}
    pool = {"profiles": {"a": shared, "b": shared}, "kubernetes": settings}
    done = firepool("doctor", "-f", pool_file(tmp_path, pool))
    assert "ok       device class: gpu.bed is there" in done.stdout, done.stdout
    assert "nothing makes a volume for PersistentVolumeClaim dra-gpu-0-lock" in done.stdout
    (locks := bed.directory / "locks").mkdir()
    settings["device_locks"] = f"host:{locks}"
    file = pool_file(tmp_path, pool)
    done = firepool("up", "-f", file, "--timeout", str(PATIENCE_S))
    assert done.returncode == 0, f"{done.stderr}\n{bed.describe()}"
    seen = set()
    for group in ("a", "b"):
        (pod,) = bed.pods(f"ray.io/cluster=dra,ray.io/group={group}")
        shown = bed.exec(pod.metadata.name, ["bash", "-c", "echo $NVIDIA_VISIBLE_DEVICES"])
        seen.add((pod.spec.node_name, shown.stdout.strip()))
    assert len(seen) == 1 and seen.pop()[1]
    said = json.loads(firepool("status", "-f", file, "--json").stdout)
    gpus = {pod["group"]: pod["gpus"] for pod in said["pods"]}
    assert (gpus["a"], gpus["b"]) == ("claim dra-gpu-0", "claim dra-gpu-0")
    assert firepool("down", "-f", file).returncode == 0
