"""From a pool file to manifests: what each pod may, what Ray is told, and that it is all there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from firepool_ray import config
from firepool_ray.cli.commands import main
from firepool_ray.config import PoolConfig
from firepool_ray.errors import ConfigError
from firepool_ray.kube import manifests, raycluster, templates
from firepool_ray.kube.api import Object

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "cluster_configs"
POOL_FILES = sorted(p for p in CONFIGS.glob("*.yaml") if config.load(p).kubernetes is not None)


def pool_of(profile: dict[str, Any] | None = None, **kubernetes: Any) -> PoolConfig:
    gpu = {"gpus": 1, "max_lanes": 4, **(profile or {})}
    return PoolConfig.from_dict({"profiles": {"gpu": gpu}, "kubernetes": kubernetes})


def rendered(pool: PoolConfig, namespace: str = "ml") -> list[Object]:
    return [document.manifest for document in manifests.documents(pool, namespace)]


def cluster_of(pool: PoolConfig) -> Object:
    return next(m for m in rendered(pool) if m["kind"] == "RayCluster")


def groups_of(pool: PoolConfig) -> dict[str, Object]:
    return {group["groupName"]: group for group in cluster_of(pool)["spec"]["workerGroupSpecs"]}


def pods_of(pool: PoolConfig) -> dict[str, Object]:
    """Pod templates by group."""
    spec = cluster_of(pool)["spec"]
    workers = {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"]["template"], **workers}


def env_of(template: Object) -> dict[str, str]:
    return {row["name"]: row["value"] for row in template["spec"]["containers"][0]["env"]}


# ------------------------------------------------------------ the whole


def test_what_others_need_comes_first() -> None:
    kinds = [m["kind"] for m in rendered(pool_of(redis="managed", monitors=True))]
    assert kinds == [
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ConfigMap",
        "Deployment",
        "Service",
        "NetworkPolicy",
        "NetworkPolicy",
        "PodMonitor",
        "PodMonitor",
        "RayCluster",
    ]


def test_everything_has_its_namespace_and_the_label_it_is_found_by() -> None:
    for manifest in rendered(pool_of(redis="managed", name="mine")):
        assert manifest["metadata"]["namespace"] == "ml"
        assert manifest["metadata"]["labels"]["firepool/pool"] == "mine"
        assert manifest["metadata"]["name"].startswith("mine")


def test_the_pool_files_namespace_counts_more_than_the_connections() -> None:
    assert rendered(pool_of(namespace="own"), "other")[0]["metadata"]["namespace"] == "own"


def test_a_pool_without_kubernetes_is_refused() -> None:
    pool = PoolConfig.from_dict({"profiles": {"gpu": {"gpus": 1}}})
    with pytest.raises(ConfigError, match="no key 'kubernetes'"):
        manifests.documents(pool)


def test_yaml_says_what_each_document_is_for_and_reads_back() -> None:
    documents = manifests.documents(pool_of(redis="managed", redis_secret="s"))
    text = manifests.render(documents)
    assert list(yaml.safe_load_all(text)) == [document.manifest for document in documents]
    for part, document in zip(text.split("---\n"), documents, strict=True):
        comment = [line[2:] for line in part.splitlines() if line.startswith("# ")]
        assert " ".join(comment) == document.purpose
    assert max(len(line) for line in text.splitlines() if line.startswith("#")) <= 100


def test_the_mounted_pool_file_is_the_pool() -> None:
    pool = pool_of({"pod": {"sharing": "dra:gpu-0"}, "max_lanes": 1}, queue="kueue:q", redis="h:1")
    held = next(m for m in rendered(pool) if m["kind"] == "ConfigMap")["data"]["pool.yaml"]
    assert PoolConfig.from_dict(yaml.safe_load(held)) == pool


# ------------------------------------------------------------ access


def rules_of(pool: PoolConfig, kind: str) -> list[tuple[str, str]]:
    found = [m for m in rendered(pool) if m["kind"] == kind]
    for role in found:
        for rule in role["rules"]:
            assert set(rule["verbs"]) == {"get", "list", "watch"}
    return [
        (group, resource)
        for role in found
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]


def test_the_controller_reads_its_own_namespace_and_writes_nothing() -> None:
    assert rules_of(pool_of(), "Role") == [
        ("", "pods"),
        ("", "events"),
        ("ray.io", "rayclusters"),
        ("resource.k8s.io", "resourceclaims"),
    ]
    assert rules_of(pool_of(), "ClusterRole") == []


def test_queues_of_the_cluster_are_read_where_they_are() -> None:
    pool = PoolConfig.from_dict(
        {
            "profiles": {"gpu": {"max_lanes": 1}},
            "queues": {"a": {"cluster_queue": "kai:t"}, "b": {"cluster_queue": "quota:other/q"}},
            "kubernetes": {},
        }
    )
    assert ("scheduling.run.ai", "queues") in rules_of(pool, "ClusterRole")
    assert not [row for row in rules_of(pool, "ClusterRole") if row[0] == "kueue.x-k8s.io"]
    found = rendered(pool)
    elsewhere = [m for m in found if m["metadata"].get("namespace") == "other"]
    assert [m["kind"] for m in elsewhere] == ["Role", "RoleBinding"]
    for binding in (m for m in found if m["kind"].endswith("Binding")):
        assert binding["subjects"][0]["namespace"] == "ml"
        role = binding["roleRef"]["name"], binding["roleRef"]["kind"]
        assert role in [(m["metadata"]["name"], m["kind"]) for m in found]


def test_no_pod_of_a_caller_gets_a_token_for_the_api() -> None:
    pods = pods_of(pool_of())
    assert {
        name: template["spec"]["automountServiceAccountToken"] for name, template in pods.items()
    } == {"head": False, "system": True, "drivers": False, "gpu": False}
    assert pods["system"]["spec"]["serviceAccountName"] == "firepool-controller"
    assert "serviceAccountName" not in pods["head"]["spec"]


def test_in_the_head_pod_only_the_autoscaler_has_a_token() -> None:
    spec = cluster_of(pool_of())["spec"]
    (mount,) = spec["autoscalerOptions"]["volumeMounts"]
    pod = spec["headGroupSpec"]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    paths = {next(iter(source)) for source in volume["projected"]["sources"]}
    assert paths == {"serviceAccountToken", "configMap", "downwardAPI"}
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert "volumeMounts" not in pod["containers"][0]


def test_an_account_of_ones_own_is_used_and_not_made() -> None:
    pool = pool_of(service_account="mine")
    assert "ServiceAccount" not in [m["kind"] for m in rendered(pool)]
    assert pods_of(pool)["system"]["spec"]["serviceAccountName"] == "mine"
    binding = next(m for m in rendered(pool) if m["kind"] == "RoleBinding")
    assert binding["subjects"][0]["name"] == "mine"


# ------------------------------------------------------------ pods


@pytest.mark.parametrize("group", ["head", "system", "drivers", "gpu"])
def test_every_pod_is_without_privileges_and_may_drain(group: str) -> None:
    template = pods_of(pool_of(drain_s=20, auth="disabled"))[group]
    spec = template["spec"]
    assert spec["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": True,
    }
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    env = env_of(template)
    assert env["RAY_AUTH_MODE"] == "disabled"
    assert env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "20"
    assert spec["terminationGracePeriodSeconds"] == 35


@pytest.mark.parametrize(
    ("user", "security"),
    [
        (None, {"runAsNonRoot": True}),
        (1000, {"runAsUser": 1000, "runAsNonRoot": True}),
        (0, {"runAsUser": 0}),
    ],
)
def test_root_is_only_who_is_asked_for(user: int | None, security: dict[str, Any]) -> None:
    found = pods_of(pool_of(run_as_user=user))["gpu"]["spec"]["securityContext"]
    assert found == {"seccompProfile": {"type": "RuntimeDefault"}, **security}


def test_settings_of_all_pods_and_of_a_profile_add_up() -> None:
    pod = {
        "node_selector": {"b": "2"},
        "tolerations": [{"key": "gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"}],
        "annotations": {"d": "4"},
        "env": {"E": "5"},
        "env_secrets": ["token"],
        "volumes": [{"mount": "/data", "claim": "sets", "read_only": True}],
        "image": "own:1",
    }
    pool = pool_of(
        {"pod": pod},
        node_selector={"a": "1"},
        tolerations=[{}],
        annotations={"c": "3"},
        image_pull_secrets=["pull"],
        ray_start_params={"object-store-memory": "200000000"},
    )
    lane, head = pods_of(pool)["gpu"], pods_of(pool)["head"]
    spec, container = lane["spec"], lane["spec"]["containers"][0]
    assert spec["nodeSelector"] == {"a": "1", "b": "2"}
    assert spec["tolerations"] == [
        {"operator": "Exists"},
        {"key": "gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
    ]
    assert lane["metadata"]["annotations"] == {"c": "3", "d": "4"}
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert env_of(lane)["E"] == "5"
    assert container["envFrom"] == [{"secretRef": {"name": "token"}}]
    assert container["image"] == "own:1"
    assert container["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/data", "readOnly": True}
    ]
    assert spec["volumes"] == [{"name": "volume-0", "persistentVolumeClaim": {"claimName": "sets"}}]
    assert head["spec"]["nodeSelector"] == {"a": "1"}
    assert "E" not in env_of(head)
    for group in groups_of(pool).values():
        assert group["rayStartParams"]["object-store-memory"] == "200000000"


# ------------------------------------------------------------ the RayCluster


def test_the_head_carries_nothing_and_notices_a_lost_node_soon() -> None:
    spec = cluster_of(pool_of())["spec"]
    assert spec["headGroupSpec"]["rayStartParams"] == {
        "num-cpus": "0",
        "num-gpus": "0",
        "dashboard-host": "0.0.0.0",
    }
    env = env_of(spec["headGroupSpec"]["template"])
    assert {key: env[key] for key in env if key.startswith("RAY_health")} == {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
    }
    assert spec["enableInTreeAutoscaling"] is True
    options = spec["autoscalerOptions"]
    assert (options["version"], options["idleTimeoutSeconds"]) == ("v2", 60)


def test_each_profile_has_a_group_that_its_label_finds() -> None:
    profiles = {
        "H100.big": {
            "gpus": 2,
            "cpus": 3,
            "min_lanes": 3,
            "max_lanes": 9,
            "resources": {"nvlink": 1},
            "labels": {"zone": "a"},
            "pod": {"lanes": 2, "min_pods": None, "idle_timeout_s": 300},
        }
    }
    group = groups_of(PoolConfig.from_dict({"profiles": profiles, "kubernetes": {}}))["h100-big"]
    assert group["labels"] == {"firepool/profile": "H100.big", "zone": "a"}
    counts = {key: group[key] for key in ("replicas", "minReplicas", "maxReplicas")}
    assert counts == {"replicas": 2, "minReplicas": 2, "maxReplicas": 5}
    assert group["idleTimeoutSeconds"] == 300
    assert group["rayStartParams"] == {
        "num-cpus": "6",
        "num-gpus": "4",
        "resources": "'{\"nvlink\": 2.0}'",
    }
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "6",
        "memory": "10Gi",
        "nvidia.com/gpu": "4",
    }


@pytest.mark.parametrize(
    ("profile", "memory"),
    [
        ({}, "6Gi"),
        ({"memory_bytes": 1 << 30}, "3Gi"),
        ({"memory_bytes": 1 << 30, "pod": {"lanes": 2}}, "4Gi"),
        ({"memory_bytes": 3 << 29}, "3584Mi"),
        ({"pod": {"memory": "7G"}}, "7G"),
    ],
)
def test_memory_is_the_lanes_and_rays_own(profile: dict[str, Any], memory: str) -> None:
    container = pods_of(pool_of(profile))["gpu"]["spec"]["containers"][0]
    assert container["resources"]["requests"]["memory"] == memory


def test_the_controllers_pod_takes_no_work_and_drivers_have_pods_of_their_own() -> None:
    groups = groups_of(pool_of())
    assert groups["system"]["labels"] == {"firepool/role": "system"}
    assert groups["system"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    assert [groups["system"][key] for key in ("minReplicas", "maxReplicas")] == [1, 1]
    assert groups["drivers"]["rayStartParams"]["resources"] == "'{\"firepool_driver\": 1}'"
    assert "drivers" not in groups_of(pool_of(drivers={"max_pods": 0}))


@pytest.mark.parametrize(
    ("image", "said", "version"),
    [
        ("rayproject/ray:2.60.0-gpu", "", "2.60.0"),
        ("registry:5000/team/ray:v2.55.1", "", "2.55.1"),
        ("rayproject/ray:2.60.0@sha256:00", "", "2.60.0"),
        ("rayproject/ray:2.60.0", "2.58.0", "2.58.0"),
        ("registry:5000/team/ray", "2.59.0", "2.59.0"),
    ],
)
def test_ray_version_is_the_tags_unless_said(image: str, said: str, version: str) -> None:
    assert cluster_of(pool_of(image=image, ray_version=said))["spec"]["rayVersion"] == version


def test_ray_version_of_a_tag_without_one_is_that_installed_here() -> None:
    import ray

    assert cluster_of(pool_of(image="mine:latest"))["spec"]["rayVersion"] == ray.__version__


def test_tokens_are_the_operators() -> None:
    assert cluster_of(pool_of(auth="token"))["spec"]["authOptions"] == {"mode": "token"}
    assert env_of(pods_of(pool_of(auth="token"))["gpu"])["RAY_AUTH_MODE"] == "token"
    assert "authOptions" not in cluster_of(pool_of())["spec"]


# ------------------------------------------------------------ the controller's start


def test_the_controller_is_kept_beside_ray_and_ray_stays_in_front(tmp_path: Path) -> None:
    """What the operator makes of the arguments: "OURS && ulimit ...; ray start ... --block"."""
    (tmp_path / "firepool").write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/kept\n")
    (tmp_path / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.05\n")
    for name in ("firepool", "sleep"):
        (tmp_path / name).chmod(0o755)
    container = pods_of(pool_of())["system"]["spec"]["containers"][0]
    kept = f"$(cat {tmp_path}/kept 2>/dev/null | wc -l)"
    ray = f'until [ "{kept}" -ge 3 ]; do /bin/sleep 0.01; done; echo RAY'
    command = f"{' '.join(container['args'])} && {ray}; kill %1"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "--", command],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PATH": path},
    )
    assert (done.stdout, done.stderr) == ("RAY\n", "")
    assert (tmp_path / "kept").read_text().splitlines()[0] == f"keep --file {templates.POOL_FILE}"
    assert container["volumeMounts"][0]["mountPath"] == os.path.dirname(templates.POOL_FILE)


# ------------------------------------------------------------ admission


def test_kueue_sets_the_cluster_free_and_admits_each_pod() -> None:
    cluster = cluster_of(pool_of(queue="kueue:team"))
    assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert cluster["metadata"]["annotations"] == {"kueue.x-k8s.io/elastic-job": "true"}
    assert cluster["spec"]["suspend"] is True
    assert "suspend" not in cluster_of(pool_of())["spec"]


@pytest.mark.parametrize(
    ("queue", "scheduler", "labels"),
    [
        ("kai:team", "kai-scheduler", {"kai.scheduler/queue": "team"}),
        ("volcano:team", "volcano", {"volcano.sh/queue-name": "team"}),
        (
            "yunikorn:root.team",
            "yunikorn",
            {
                "yunikorn.apache.org/app-id": "firepool",
                "yunikorn.apache.org/queue": "root.team",
                "applicationId": "firepool",
                "queue": "root.team",
            },
        ),
    ],
)
def test_schedulers_are_named_on_every_pod(
    queue: str, scheduler: str, labels: dict[str, str]
) -> None:
    pool = pool_of(queue=queue)
    for template in pods_of(pool).values():
        assert template["spec"]["schedulerName"] == scheduler
        assert labels.items() <= template["metadata"]["labels"].items()
    told = cluster_of(pool)["metadata"]["labels"]
    assert {k: v for k, v in labels.items() if "/" in k}.items() <= told.items()
    assert all("schedulerName" not in t["spec"] for t in pods_of(pool_of()).values())


# ------------------------------------------------------------ what stands around it


def test_without_fault_tolerance_the_head_is_not_evicted() -> None:
    budget = next(m for m in rendered(pool_of()) if m["kind"] == "PodDisruptionBudget")
    assert budget["spec"] == {
        "minAvailable": 1,
        "selector": {"matchLabels": {"ray.io/cluster": "firepool", "ray.io/node-type": "head"}},
    }
    assert not [m for m in rendered(pool_of(redis="h:6379")) if m["kind"] == budget["kind"]]


def test_a_redis_of_ones_own_and_of_ours() -> None:
    own = cluster_of(pool_of(redis="cache:6380", redis_secret="s"))["spec"]
    assert own["gcsFaultToleranceOptions"] == {
        "redisAddress": "cache:6380",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
    }
    assert not [m for m in rendered(pool_of(redis="cache:6380")) if m["kind"] == "Deployment"]
    ours = pool_of(redis="managed")
    service = next(m for m in rendered(ours) if m["kind"] == "Service")
    address = cluster_of(ours)["spec"]["gcsFaultToleranceOptions"]["redisAddress"]
    port = service["spec"]["ports"][0]["port"]
    assert address == f"{service['metadata']['name']}:{port}"
    deployment = next(m for m in rendered(ours) if m["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]


def test_the_password_of_redis_is_nowhere_but_in_its_secret() -> None:
    pool = pool_of(redis="managed", redis_secret="s")
    container = next(m for m in rendered(pool) if m["kind"] == "Deployment")["spec"]["template"][
        "spec"
    ]["containers"][0]
    assert container["command"][-2:] == ["--requirepass", "$(REDIS_PASSWORD)"]
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "s", "key": "password"}


def test_who_may_call_ray() -> None:
    policy = next(m for m in rendered(pool_of()) if m["kind"] == "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": "firepool"}
    ports = [[row["port"] for row in rule.get("ports", ())] for rule in policy["spec"]["ingress"]]
    assert ports == [[], [8265, 10001]]
    assert not [m for m in rendered(pool_of(network_policy=False)) if m["kind"] == policy["kind"]]


# ------------------------------------------------------------ trainers


def test_a_rayjob_uses_the_cluster_that_is_there() -> None:
    pool = pool_of(name="mine")
    job = manifests.rayjob_document(
        pool, "python train.py", "t", namespace="ml", working_dir="s3://a/b.zip", env={"A": "1"}
    ).manifest
    spec = job["spec"]
    assert job["metadata"]["namespace"] == "ml"
    assert spec["clusterSelector"] == {"ray.io/cluster": "mine"}
    assert (spec["submissionMode"], spec["entrypoint"]) == ("K8sJobMode", "python train.py")
    assert spec["shutdownAfterJobFinishes"] is False
    # The operator refuses both for a job on a cluster that is there.
    assert "suspend" not in spec and "rayClusterSpec" not in spec
    assert spec["entrypointResources"] == '{"firepool_driver": 1}'
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {
        "working_dir": "s3://a/b.zip",
        "env_vars": {"A": "1"},
    }
    pod = spec["submitterPodTemplate"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["restartPolicy"] == "Never"


def test_without_pods_for_drivers_they_run_on_the_head() -> None:
    job = raycluster.rayjob(pool_of(drivers={"max_pods": 0}), "true", "t")
    assert "entrypointResources" not in job["spec"]
    assert "runtimeEnvYAML" not in job["spec"]


# ------------------------------------------------------------ the files of this repository


def render(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["kube", "render", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("path", POOL_FILES, ids=lambda path: path.stem)
def test_rendered_files_are_what_render_prints(path: Path) -> None:
    assert render("-f", str(path)) == (CONFIGS / "rendered" / path.name).read_text()


def test_the_rendered_rayjob_is_what_render_prints() -> None:
    printed = render(
        "-f", str(CONFIGS / "autoscaled.yaml"), "--rayjob", "firepool demo", "--name", "train"
    )
    assert printed == (CONFIGS / "rendered" / "rayjob.yaml").read_text()


def test_there_is_a_pool_file_for_each_way_to_be_admitted_and_to_share() -> None:
    assert {path.stem for path in POOL_FILES} >= {
        "autoscaled",
        "kueue",
        "kai",
        "volcano",
        "yunikorn",
        "dra",
        "fault_tolerant",
    }
    files = {path.name for path in (CONFIGS / "rendered").iterdir()}
    assert files == {*(path.name for path in POOL_FILES), "rayjob.yaml"}
