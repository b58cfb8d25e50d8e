"""The test cluster itself: pods live and die in it as they would on a real one."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kube.bed import Bed, BedError
from tests.kube.bed.bed import is_ready
from tests.kube.bed.rest import ApiError

NODES = "cpu-a:cpu=8;cpu-b:cpu=8,label/doomed=yes,taint/doomed=yes;gpu-a:gpu=2;dra-a:dra=1"
OPERATOR = False
PATIENCE_S = 60.0

_numbers = itertools.count()
_SERVE = "mkdir -p www && cd www && echo hello > index.html && python -m http.server 8000"


def a_pod(script: str = "sleep infinity", **more: Any) -> dict[str, Any]:
    """A pod of one container. ``container=`` and ``labels=`` add to it, the rest to its spec."""
    container = {"name": "main", "image": "none", "command": ["bash", "-c", script]}
    container.update(more.pop("container", {}))
    labels = more.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{next(_numbers)}", "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 2, **more},
    }


def run(bed: Bed, pod: dict[str, Any]) -> str:
    """Name of the pod, which is ready."""
    bed.apply([pod])
    name: str = pod["metadata"]["name"]
    bed.wait_ready(name, PATIENCE_S)
    return name


def finish(bed: Bed, pod: dict[str, Any], phase: str = "Succeeded") -> str:
    """What the pod printed until it ended."""
    bed.apply([pod])
    name: str = pod["metadata"]["name"]
    wait_phase(bed, name, phase)
    return bed.pod_log(name)


def wait_phase(bed: Bed, name: str, phase: str) -> None:
    def reached() -> bool:
        pod = bed.pod(name)
        return pod is not None and pod.status.phase == phase

    bed.wait_for(reached, PATIENCE_S, f"{name} {phase}")


def wait_gone(bed: Bed, name: str) -> None:
    bed.wait_for(lambda: bed.pod(name) is None, PATIENCE_S, f"end of {name}")


def wait_log(bed: Bed, name: str, text: str) -> None:
    bed.wait_for(lambda: text in bed.pod_log(name), PATIENCE_S, f"{text!r} in the log of {name}")


def reaches(bed: Bed, name: str, address: str) -> bool:
    get = ["curl", "-s", "--max-time", "1", f"http://{address}:8000/"]
    return bed.exec(name, get, timeout_s=10.0).stdout.strip() == "hello"


def pids_of(pattern: str) -> list[str]:
    """Of all processes of all pods."""
    return subprocess.run(
        ["pgrep", "-f", pattern], check=False, capture_output=True, text=True
    ).stdout.split()


# -- what a container is given -------------------------------------------------------------------


def test_nodes_are_ready_with_what_they_claim(bed: Bed) -> None:
    nodes = {node.metadata.name: node for node in bed.core.list_node().items}
    assert nodes.keys() == {"cpu-a", "cpu-b", "gpu-a", "dra-a"}
    assert nodes["gpu-a"].status.allocatable["nvidia.com/gpu"] == "2"
    assert nodes["cpu-b"].metadata.labels["doomed"] == "yes"


def test_environment_and_log(bed: Bed) -> None:
    env = [
        {"name": "PLAIN", "value": "p"},
        {"name": "BOTH", "value": "$(PLAIN)-$(UNKNOWN)"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "key"}}},
    ]
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    bed.apply([{**settings, "data": {"key": "k"}}])
    container = {"env": env, "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}}
    script = "echo $BOTH $NODE $CPU $KEY; which firepool"
    pod = a_pod(script, container=container, restartPolicy="Never")
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "cpu-a"}
    first, second = finish(bed, pod).splitlines()
    assert first == "p-$(UNKNOWN) cpu-a 2 k"
    assert second.endswith("/bin/firepool")


def test_volumes(bed: Bed) -> None:
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}}
    bed.apply([{**files, "data": {"a": "A", "b": "B"}}])
    pod = a_pod(
        "cat /etc/bed-files/a /etc/bed-b; touch /etc/bed-files/no || echo -read-only",
        restartPolicy="Never",
        volumes=[{"name": "files", "configMap": {"name": "files"}}],
    )
    pod["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "files", "mountPath": "/etc/bed-files", "readOnly": True},
        {"name": "files", "mountPath": "/etc/bed-b", "subPath": "b"},
    ]
    assert "AB" in (log := finish(bed, pod)) and "-read-only" in log


def test_a_missing_config_map_is_waited_for(bed: Bed) -> None:
    container = {"envFrom": [{"configMapRef": {"name": "late"}}]}
    pod = a_pod("echo $WORD", container=container, restartPolicy="Never")
    bed.apply([pod])

    def refused() -> bool:
        statuses = bed.pod(pod["metadata"]["name"]).status.container_statuses or ()
        return any(
            s.state.waiting and s.state.waiting.reason == "CreateContainerConfigError"
            for s in statuses
        )

    bed.wait_for(refused, PATIENCE_S, "a container that cannot be made")
    late = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}
    bed.apply([{**late, "data": {"WORD": "now"}}])
    assert finish(bed, pod) == "now\n"


def test_init_containers_come_first(bed: Bed) -> None:
    init = {"name": "first", "image": "none", "command": ["bash", "-c", "echo 1 > /tmp/made"]}
    pod = a_pod("cat /tmp/made", initContainers=[init], restartPolicy="Never")
    assert finish(bed, pod) == "1\n"


def test_a_token_can_call_the_api_as_far_as_its_role_goes(bed: Bed) -> None:
    since = bed.audit.now()
    script = """
at=/var/run/secrets/kubernetes.io/serviceaccount
for what in version api/v1/namespaces/default/pods; do
    curl -s -o /dev/null -w '%{http_code}\\n' --cacert $at/ca.crt -A under-test \
        -H "Authorization: Bearer $(cat $at/token)" https://kubernetes.default.svc/$what
done"""
    assert finish(bed, a_pod(script, restartPolicy="Never")).split() == ["200", "403"]

    (asked,) = bed.audit.requests(since, agent="under-test", user="system:serviceaccount")[1:]
    assert (asked.verb, asked.resource, asked.code) == ("list", "pods", 403)
    assert bed.audit.count_by_agent(since)["under-test"] == 2
    assert bed.audit.count_by_user(since)["kubelet"] > 0
    assert bed.audit.requests(bed.audit.now(), agent="under-test") == []


# -- life ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(bed: Bed) -> str:
    """A pod that serves, and a service of the name ``web`` in front of it."""
    probe = {"httpGet": {"port": 8000, "path": "/"}, "periodSeconds": 1, "failureThreshold": 1}
    ports = [{"port": 8000}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": ports, "clusterIP": "None"},
    }
    bed.apply([service])
    container = {"readinessProbe": probe}
    return run(bed, a_pod(_SERVE, container=container, labels={"app": "web"}))


@pytest.fixture(scope="module")
def client(bed: Bed) -> str:
    return run(bed, a_pod())


def test_a_service_name_resolves_in_another_pod(bed: Bed, server: str, client: str) -> None:
    for name in ("web", "web.default.svc.cluster.local", server):
        assert reaches(bed, client, name), bed.exec(client, ["cat", "/etc/hosts"]).stdout


def test_a_pod_is_ready_as_long_as_its_probe_succeeds(bed: Bed, server: str) -> None:
    def ready() -> bool:
        return is_ready(bed.pod(server))

    bed.faults.pause_process(server, "http.server")
    bed.wait_for(lambda: not ready(), PATIENCE_S, "failing probe")
    bed.faults.resume_process(server, "http.server")
    bed.wait_for(ready, PATIENCE_S, "succeeding probe")


def test_a_failing_liveness_probe_restarts_the_container(bed: Bed) -> None:
    probe = {"exec": {"command": ["test", "-e", "alive"]}, "periodSeconds": 1}
    container = {"livenessProbe": {**probe, "failureThreshold": 2, "initialDelaySeconds": 1}}
    name = run(bed, a_pod("touch alive; sleep infinity", container=container))
    before = restarts(bed, name)
    bed.exec(name, ["rm", "-f", "alive"])
    bed.wait_for(lambda: restarts(bed, name) > before, PATIENCE_S, "restart")


def restarts(bed: Bed, name: str) -> int:
    count: int = bed.pod(name).status.container_statuses[0].restart_count
    return count


def test_an_ended_container_restarts_without_what_it_left(bed: Bed) -> None:
    script = "(setsid sleep 12345 &); echo started; until [ -e end ]; do sleep 0.05; done; rm end"
    name = run(bed, a_pod(script))
    (left,) = bed.wait_for(lambda: pids_of("^sleep 12345"), PATIENCE_S, "process to leave")
    bed.exec(name, ["touch", "end"])
    bed.wait_for(lambda: restarts(bed, name) == 1, PATIENCE_S, "restart")
    wait_log(bed, name, "started\nstarted\n")
    assert left not in pids_of("^sleep 12345")


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("Never", 3, "Failed"), ("OnFailure", 0, "Succeeded")],
)
def test_how_a_pod_ends_by_itself(bed: Bed, policy: str, code: int, phase: str) -> None:
    pod = a_pod(f"exit {code}", restartPolicy=policy)
    finish(bed, pod, phase)
    state = bed.pod(pod["metadata"]["name"]).status.container_statuses[0].state
    assert state.terminated.exit_code == code


def test_a_crashing_container_is_tried_again_with_pauses(bed: Bed) -> None:
    pod = a_pod("echo again; exit 1")
    name = pod["metadata"]["name"]
    bed.apply([pod])
    bed.wait_for(lambda: bed.pod(name).status.container_statuses, PATIENCE_S, "status")
    bed.wait_for(lambda: restarts(bed, name) >= 2, PATIENCE_S, "second restart")
    status = bed.pod(name).status
    last = status.container_statuses[0].last_state.terminated
    assert (status.phase, last.exit_code) == ("Running", 1)
    wait_log(bed, name, "again\nagain\nagain\n")
    bed.faults.delete_pod(name, grace_s=0)


def test_a_pod_may_be_deleted_before_it_runs(bed: Bed) -> None:
    init = {"name": "first", "image": "none", "command": ["sleep", "infinity"]}
    slow = a_pod(initContainers=[init], terminationGracePeriodSeconds=0)
    absent = {"envFrom": [{"configMapRef": {"name": "never"}}]}
    for pod in (slow, a_pod(container=absent)):
        name = pod["metadata"]["name"]
        bed.apply([pod])
        bed.wait_for(lambda name=name: bed.pod(name).status.pod_ip, PATIENCE_S, "sandbox")
        bed.faults.delete_pod(name)
        wait_gone(bed, name)


# -- ends ----------------------------------------------------------------------------------------

_TRAP = "trap 'echo told; sleep 1; echo done; exit 0' TERM"
_LISTEN = f"{_TRAP}; echo up; while :; do sleep 0.1; done"


def run_listening(bed: Bed, pod: dict[str, Any]) -> str:
    """Name of a pod that runs ``_LISTEN`` and will hear SIGTERM."""
    name = run(bed, pod)
    wait_log(bed, name, "up")
    return name


def test_a_deleted_pod_is_told_and_may_finish(bed: Bed) -> None:
    hook = {"preStop": {"exec": {"command": ["bash", "-c", "echo hook >> /proc/1/fd/1"]}}}
    pod = a_pod(_LISTEN, container={"lifecycle": hook}, terminationGracePeriodSeconds=20)
    name = run_listening(bed, pod)
    bed.faults.delete_pod(name)
    assert bed.pod(name).metadata.deletion_timestamp is not None
    wait_gone(bed, name)
    assert bed.pod_log(name).split() == ["up", "hook", "told", "done"]


def test_one_that_does_not_listen_is_killed_after_the_grace(bed: Bed) -> None:
    name = run_listening(bed, a_pod("trap '' TERM; echo up; while :; do sleep 0.1; done"))
    began = time.monotonic()
    bed.faults.delete_pod(name, grace_s=3)
    wait_gone(bed, name)
    assert time.monotonic() - began > 2.5


def test_without_grace_it_is_gone_at_once(bed: Bed) -> None:
    name = run_listening(bed, a_pod(_LISTEN))
    bed.faults.delete_pod(name, grace_s=0)
    assert bed.pod(name) is None
    time.sleep(0.5)
    assert "told" not in bed.pod_log(name)


def test_an_evicted_pod_goes_as_a_deleted_one_unless_a_budget_forbids_it(bed: Bed) -> None:
    name = run_listening(bed, a_pod(_LISTEN, labels={"app": "guarded"}))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    bed.apply([budget])
    with pytest.raises(ApiError, match="disruption budget"):
        bed.faults.evict(name)
    bed.apply([{**budget, "spec": {**budget["spec"], "minAvailable": 0}}])

    def evicted() -> bool:
        try:
            bed.faults.evict(name)
        except ApiError as error:
            assert error.status == 429
            return False
        return True

    bed.wait_for(evicted, PATIENCE_S, "eviction")
    wait_gone(bed, name)
    assert bed.pod_log(name).split()[:2] == ["up", "told"]


def test_a_killed_pod_fails_with_all_its_processes(bed: Bed) -> None:
    name = run_listening(bed, a_pod("setsid sleep 54321 & " + _LISTEN))
    bed.faults.kill_pod(name)
    wait_phase(bed, name, "Failed")
    assert bed.pod_log(name) == "up\n"
    assert not pids_of("54321")
    with pytest.raises(ProcessLookupError):
        bed.exec(name, ["true"])
    bed.faults.delete_pod(name)
    wait_gone(bed, name)


def test_a_cut_network_loses_packets_until_it_is_mended(bed: Bed, client: str) -> None:
    other = run(bed, a_pod(_SERVE))
    address = bed.pod(other).status.pod_ip
    bed.wait_for(lambda: reaches(bed, client, address), PATIENCE_S, "answer")
    bed.faults.cut_network(other)
    assert not reaches(bed, client, address)
    assert bed.exec(other, ["true"]).returncode == 0
    bed.faults.mend_network(other)
    bed.wait_for(lambda: reaches(bed, client, address), PATIENCE_S, "answer after mending")


def test_a_paused_process_goes_on_after_it_is_resumed(bed: Bed) -> None:
    name = run(bed, a_pod("while :; do echo tick; sleep 0.05; done"))
    bed.faults.pause_process(name, "tick")
    time.sleep(0.2)
    stopped_at = bed.pod_log(name)
    time.sleep(0.3)
    assert bed.pod_log(name) == stopped_at
    bed.faults.resume_process(name, "tick")
    bed.wait_for(lambda: len(bed.pod_log(name)) > len(stopped_at), PATIENCE_S, "tick")
    with pytest.raises(BedError, match="matches"):
        bed.faults.pause_process(name, "no such thing")


def test_exec_ends_what_takes_too_long(bed: Bed, client: str) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        bed.exec(client, ["bash", "-c", "echo $WORD; sleep 777"], 1.0, env={"WORD": "said"})
    assert caught.value.stdout == "said\n"
    bed.wait_for(lambda: not pids_of("sleep 777"), PATIENCE_S, "end of the command")


# -- GPUs ----------------------------------------------------------------------------------------


def gpu_pod(count: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(count)}
    container = {"resources": {"limits": limits, "requests": limits}}
    return a_pod("echo $NVIDIA_VISIBLE_DEVICES; sleep infinity", container=container)


def unschedulable(bed: Bed, name: str) -> str:
    def message() -> str | None:
        conditions = bed.pod(name).status.conditions or ()
        return next((c.message for c in conditions if c.reason == "Unschedulable"), None)

    found = bed.wait_for(message, PATIENCE_S, f"word about {name}")
    assert found is not None
    return found


def test_gpus_are_counted_and_used_again(bed: Bed) -> None:
    first = run(bed, gpu_pod(2))
    wait_log(bed, first, "GPU-gpu-a-0,GPU-gpu-a-1\n")
    second = gpu_pod(1)
    bed.apply([second])
    name = second["metadata"]["name"]
    assert "Insufficient nvidia.com/gpu" in unschedulable(bed, name)
    bed.faults.delete_pod(first, grace_s=1)
    bed.wait_ready(name, PATIENCE_S)
    wait_log(bed, name, "GPU-gpu-a-0\n")
    too_many = gpu_pod(3)
    bed.apply([too_many])
    assert "Insufficient nvidia.com/gpu" in unschedulable(bed, too_many["metadata"]["name"])


def test_two_pods_share_a_claimed_device(bed: Bed) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.bed", "count": 1}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "lane-0"},
        "spec": {"devices": {"requests": [request]}},
    }
    bed.apply([claim])
    container = {"resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": "lane-0"}]
    script = "echo $NVIDIA_VISIBLE_DEVICES; sleep infinity"
    pods = [a_pod(script, container=container, resourceClaims=claims) for _ in range(2)]
    for name in [run(bed, pod) for pod in pods]:
        wait_log(bed, name, "dra-a/gpu-0\n")


# -- failures of the cluster ---------------------------------------------------------------------


def test_what_is_waited_for_in_vain_is_told_with_pods_and_events(bed: Bed, client: str) -> None:
    with pytest.raises(BedError, match=rf"(?s)no miracle after 0.2 s.*{client} on .*main ready"):
        bed.wait_for(lambda: False, 0.2, "miracle")


def test_pods_outlive_an_api_server_that_is_away(bed: Bed) -> None:
    name = run(bed, a_pod("until [ -e end ]; do sleep 0.1; done; exit 0", restartPolicy="Never"))
    bed.faults.pause_program("apiserver")
    try:
        bed.exec(name, ["touch", "end"])
        time.sleep(1.0)
    finally:
        bed.faults.resume_program("apiserver")
    wait_phase(bed, name, "Succeeded")


def test_a_dead_node_is_not_ready_and_its_pods_are_gone(bed: Bed) -> None:
    toleration = {"key": "doomed", "operator": "Exists"}
    pod = a_pod("sleep 98765", nodeSelector={"doomed": "yes"}, tolerations=[toleration])
    name = run(bed, pod)
    bed.faults.kill_node("cpu-b")
    assert not pids_of("sleep 98765")

    def statuses() -> Mapping[str, str]:
        conditions = bed.core.read_node("cpu-b").status.conditions
        return {c.type: c.status for c in conditions}

    bed.wait_for(lambda: statuses()["Ready"] == "Unknown", PATIENCE_S, "lost node")
    bed.wait_for(lambda: not is_ready(bed.pod(name)), PATIENCE_S, "pod that is not ready")
    assert bed.pod(name).status.phase == "Running"
