"""``firepool kube``: options, exit codes and pages, with an API server in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from firepool_ray.cli.commands import main
from firepool_ray.kube import api, deploy, doctor
from tests.kube.server import FakeServer, pod

POOL = """
profiles: {gpu: {gpus: 1, max_lanes: 2}}
kubernetes: {name: mine}
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()

    def connect(namespace: str = "", agent: str = "cli") -> FakeServer:
        fake.namespace = namespace or fake.namespace
        return fake

    monkeypatch.setattr(api.Kube, "connect", connect)
    monkeypatch.setattr(deploy, "LOOK_S", 0.01)
    monkeypatch.setattr(doctor, "OPERATOR_S", 0.0)
    return fake


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL)
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["kube", *arguments])


def test_render_prints_yaml_without_asking_a_cluster(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    result = run("render", "-f", file, "-n", "ml")
    assert result.exit_code == 0, result.output
    documents = list(yaml.safe_load_all(result.output))
    assert documents[-1]["kind"] == "RayCluster"
    assert {d["metadata"]["namespace"] for d in documents} == {"ml"}


def test_render_of_a_rayjob(file: str) -> None:
    arguments = ["--rayjob", "python t.py", "--name", "t", "--env", "A=1=2"]
    result = run("render", "-f", file, *arguments)
    job = yaml.safe_load(result.output)
    assert (job["kind"], job["metadata"]["name"]) == ("RayJob", "t")
    assert yaml.safe_load(job["spec"]["runtimeEnvYAML"]) == {"env_vars": {"A": "1=2"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "A=1"], "give --rayjob too"),
        (["--rayjob", "true", "--env", "A"], "write KEY=VALUE"),
    ],
)
def test_wrong_calls_exit_with_2(file: str, arguments: list[str], message: str) -> None:
    result = run("render", "-f", file, *arguments)
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_a_pool_file_without_kubernetes_says_what_to_add(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("profiles: {gpu: {}}")
    result = run("render", "-f", str(path))
    assert result.exit_code == 2
    assert "no key 'kubernetes': add it" in result.output


def test_up_that_fails_exits_with_1_and_the_reasons(server: FakeServer, file: str) -> None:
    result = run("up", "-f", file, "--timeout", "0")
    assert result.exit_code == 1
    assert "RayCluster mine created" in result.output
    assert "RayCluster mine is not up after 0 s" in result.output
    assert "the head: no pod yet" in result.output


def test_up_status_and_down(server: FakeServer, file: str) -> None:
    server.put(pod("mine", "mine-head", "headgroup"))
    server.put(pod("mine", "mine-system", "system"))
    result = run("up", "-f", file, "--timeout", "5")
    assert result.exit_code == 0, result.output
    assert "RayCluster mine is up: 2 pods." in result.output

    result = run("status", "-f", file)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "RayCluster mine in namespace default: up"
    assert any(line.split() == ["gpu", "gpu", "0", "0", "0", "0", "2"] for line in lines)
    assert any("mine-system" in line and line.endswith("ready") for line in lines)
    said = json.loads(run("status", "-f", file, "--json").output)
    assert [row["name"] for row in said["pods"]] == ["mine-head", "mine-system"]

    result = run("down", "-f", file)
    assert result.exit_code == 0, result.output
    assert "Pool mine has gone" in result.output
    assert server.names("rayclusters") == []


def test_status_of_what_is_not_there_exits_with_1(server: FakeServer, file: str) -> None:
    result = run("status", "-f", file, "-n", "ml")
    assert result.exit_code == 1
    assert "RayCluster mine in namespace ml: not up" in result.output
    assert "there is no RayCluster 'mine'" in result.output


def test_doctor_prints_a_line_each_and_exits_by_what_it_found(
    server: FakeServer, file: str
) -> None:
    result = run("doctor", "-f", file)
    assert result.exit_code == 1
    assert "ok       API server: Kubernetes v1.34.4" in result.output
    assert "problem  namespace: there is no default" in result.output
    rows = json.loads(run("doctor", "-f", file, "--json").output)
    assert {"verdict", "what", "detail"} == set(rows[0])
    assert "problem" in {row["verdict"] for row in rows}
