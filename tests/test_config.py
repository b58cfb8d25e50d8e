"""The pool file: what is filled in, what is refused, and that the message names the key."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from firepool_ray import config
from firepool_ray.config import PoolConfig, ProfileConfig, QueueConfig, pods
from firepool_ray.config.quantities import number
from firepool_ray.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
GPU: dict[str, Any] = {"profiles": {"gpu": {"gpus": 1}}}


def on_pods(profile: dict[str, Any], **kubernetes: Any) -> dict[str, Any]:
    """A pool of one profile "g" on Kubernetes."""
    return {"profiles": {"g": {"gpus": 1, "max_lanes": 1, **profile}}, "kubernetes": kubernetes}


def test_what_is_implied_is_filled_in() -> None:
    pool = PoolConfig.from_dict({"profiles": {"b": {}, "a": None}, "queues": {"rl": None}})
    assert pool.default_profile == "b"
    assert pool.default_queue == "default"
    assert pool.queues == {"default": QueueConfig(), "rl": QueueConfig()}
    assert pool.profiles["a"] == ProfileConfig()


def test_json_round_trip_keeps_everything() -> None:
    pool = PoolConfig.from_dict(
        {
            "profiles": {"gpu": {"gpus": 0.5, "preload": ["numpy"], "env": {"A": "1"}}},
            "queues": {"rl": {"quota_gpus": 1, "limit_gpus": 2, "weight": 3}},
            "idle_cap_gpus": 0,
            "embedded": True,
        }
    )
    assert PoolConfig.from_json(pool.to_json()) == pool


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        PoolConfig.from_dict(GPU).window_s = 1.0  # type: ignore[misc]


def test_spec_has_infinity_where_nothing_is_said() -> None:
    spec = PoolConfig.from_dict(GPU).to_spec()
    assert (spec.max_gpus, spec.idle_cap) == (math.inf, math.inf)
    assert spec.queues[0].quota == spec.queues[0].limit == math.inf
    assert spec.profiles[0].max_lanes == config.UNBOUNDED_LANES


def test_spec_keeps_zero_apart_from_nothing() -> None:
    pool = {**GPU, "idle_cap_gpus": 0, "queues": {"q": {"quota_gpus": 0, "limit_gpus": 0}}}
    spec = PoolConfig.from_dict(pool).to_spec()
    queue = next(q for q in spec.queues if q.name == "q")
    assert (spec.idle_cap, queue.quota, queue.limit) == (0.0, 0.0, 0.0)


def test_capacity_fills_only_what_was_left_open() -> None:
    pool = PoolConfig.from_dict(
        {"profiles": {"open": {}, "small": {"min_lanes": 2}, "set": {"max_lanes": 3}, "new": {}}}
    ).with_capacity({"open": 8, "small": 0, "set": 9})
    assert [p.max_lanes for p in pool.profiles.values()] == [8, 2, 3, None]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"profiles: field required"),
        ({"profiles": {}}, r"profiles: mapping should have at least 1 item"),
        ({"profiles": []}, r"profiles: input should be a valid mapping"),
        ({"profiles": {"g": 3}}, r"profiles\.g: input should be a valid mapping, not 3"),
        ({"profiles": {"g": {"gpuz": 1}}}, r"profiles\.g\.gpuz: unknown key\. Did you mean 'gpus'"),
        ({**GPU, "profile": 1}, r"profile: unknown key\. .*Valid: .*default_queue"),
        ({**GPU, "queues": {"q": {"quota": 1}}}, r"queues\.q\.quota: unknown key.*quota_gpus"),
        ({"profiles": {"g": {"gpus": "1"}}}, r"profiles\.g\.gpus: .*number, not '1'"),
        ({"profiles": {"g": {"gpus": True}}}, r"profiles\.g\.gpus: .*number, not True"),
        ({"profiles": {"g": {"gpus": -1}}}, r"profiles\.g\.gpus: .*greater than or equal to 0"),
        ({"profiles": {"g": {"gpus": math.nan}}}, r"profiles\.g\.gpus: .*finite"),
        ({"profiles": {"g": {"gpus": math.inf}}}, r"profiles\.g\.gpus: .*finite"),
        ({"profiles": {"g": {"gpus": 1.5}}}, r"profiles\.g: gpus is 1\.5.*whole GPUs"),
        ({"profiles": {"g": {"cpus": 0}}}, r"profiles\.g: a lane that reserves nothing"),
        ({"profiles": {"g": {"resources": {"GPU": 1.0}}}}, r"must not name GPU: use cpus, gpus"),
        ({"profiles": {"g": {"min_lanes": 3, "max_lanes": 2}}}, r"min_lanes 3 exceeds max_lanes 2"),
        ({"profiles": {"g": {"env": {"A": 1}}}}, r"profiles\.g\.env\.A: .*string, not 1"),
        ({"profiles": {"g": {"env": {"A=": "1"}}}}, r"profiles\.g\.env\.A=: this name is not"),
        ({"profiles": {"g": {"preload": "numpy"}}}, r"profiles\.g\.preload: .*tuple"),
        ({"profiles": {"g": {"preload": ["1a"]}}}, r"profiles\.g\.preload\.0: "),
        ({"profiles": {"a b": {}}}, r"profiles\.a b: this name is not allowed"),
        ({"profiles": {1: {}}}, r"profiles\.1: this name is not allowed, it must be a string"),
        ({"profiles": {"x" * 64: {}}}, r"this name is not allowed"),
        ({**GPU, "queues": {"q\n": {}}}, r"this name is not allowed"),
        ({**GPU, "queues": {"q": {"quota_gpus": 3, "limit_gpus": 1}}}, r"quota_gpus 3.* exceeds"),
        ({**GPU, "default_queue": "x"}, r"default_queue 'x' is not defined\. Valid: default"),
        ({**GPU, "default_profile": "x"}, r"default_profile 'x' is not defined\. Valid: gpu"),
        ({**GPU, "window_s": 0}, r"window_s: .*greater than 0"),
        ({**GPU, "start_backoff_s": 60}, r"start_backoff_s exceeds"),
        ({"profiles": {"g": {"gpus": 2, "min_lanes": 2}}, "max_gpus": 3}, r"need 4 units"),
        ({**GPU, "kubernetes": {"hed": {}}}, r"kubernetes\.hed: unknown key\. Did you mean 'head'"),
        ({**GPU, "kubernetes": {"head": {"cpu": 1}}}, r"kubernetes\.head\.cpu: unknown.*'cpus'"),
        ({**GPU, "kubernetes": {"name": "A"}}, r"kubernetes\.name: .*pattern"),
        ({**GPU, "kubernetes": {"redis": "x"}}, r"kubernetes\.redis: .*pattern"),
        ({**GPU, "kubernetes": {"auth": "none"}}, r"kubernetes\.auth: .*'disabled' or 'token'"),
        ({**GPU, "kubernetes": {}}, r"profiles\.g.*max_lanes: say how many"),
        (
            on_pods({}, queue="slurm:a"),
            r"unknown kind of queue 'slurm': use kueue",
        ),
        (on_pods({}, queue="quota:a/b"), r"kubernetes\.queue: unknown kind of queue 'quota'"),
        (on_pods({}, queue="kueue:"), r"kubernetes\.queue: kueue: needs the name of a queue"),
        (on_pods({}, ray_start_params={"num-gpus": "2"}), r"ray_start_params: num-gpus is set by"),
        (on_pods({}, tolerations=[{"keys": "a"}]), r"tolerations\.0\.keys: unknown.*'key'"),
        (on_pods({"pod": {"lane": 1}}), r"profiles\.g\.pod\.lane: unknown key.*'lanes'"),
        (on_pods({"pod": {"memory": "4 GB"}}), r"profiles\.g\.pod\.memory: .*pattern"),
        (on_pods({"pod": {"sharing": "mps:2"}}), r"pod\.sharing: unknown sharing 'mps': use dra:"),
        (on_pods({"pod": {"sharing": "kai-fraction:2"}}), r"needs a number between 0 and 1"),
        (on_pods({"pod": {"sharing": "time-slicing:1"}}), r"needs 2 or more replicas"),
        (on_pods({"pod": {"sharing": "dra:A_b"}}), r"needs the name of a ResourceClaim"),
        (on_pods({"pod": {"min_pods": 3, "max_pods": 2}}), r"min_pods 3 exceeds max_pods 2"),
        (
            on_pods({"max_lanes": 5, "pod": {"max_pods": 2}}),
            r"max_pods: 2 pods of 1 lanes",
        ),
        (
            on_pods({"cpus": 4, "pod": {"cpus": 2.0}}),
            r"g\.pod\.cpus: 1 lanes need 4 CPUs",
        ),
        (
            on_pods({"gpus": 0, "pod": {"sharing": "mig:1g.10gb"}}),
            r"sharing: .* needs gpus",
        ),
        (
            on_pods({"gpus": 0.4, "pod": {"lanes": 2}}),
            r"pod\.lanes: .* leave a part of",
        ),
        (
            on_pods({"pod": {"sharing": "kai-fraction:0.5"}}),
            r"are more than .*0\.5 of a GPU",
        ),
        (
            on_pods({"gpus": 0.5, "cpus": 0.5, "pod": {"sharing": "kai-fraction:0.5"}}),
            r"profiles\.g\.cpus: .*whole CPUs",
        ),
        (
            on_pods({"gpus": 0.5, "pod": {"sharing": "kai-memory:4000"}}, queue="volcano:q"),
            r"profiles\.g\.pod\.sharing: only KAI's scheduler knows kai-memory:4000",
        ),
        (on_pods({"max_lanes": 2, "pod": {"sharing": "dra:d"}}), r"claim 'd' is one device"),
        (
            on_pods({"pod": {"volumes": [{"mount": "/a", "claim": "a", "secret": "b"}]}}),
            r"volumes\.0: a volume has exactly one of",
        ),
        ({**GPU, "queues": {"q": {"cluster_queue": "quota:a"}}}, r"needs NAMESPACE/RESOURCEQUOTA"),
        (
            {**GPU, "queues": {"q": {"cluster_queue": "kueue:a"}}},
            r"queues\.q\.cluster_queue: only a pool on Kubernetes can follow one",
        ),
        (on_pods({}, yunikorn="http://x"), r"kubernetes\.yunikorn"),
    ],
)
def test_a_mistake_names_the_key_and_what_is_allowed(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        PoolConfig.from_dict(data, "pool.yaml")
    assert str(caught.value).startswith("pool.yaml: ")


def test_kueue_admits_seven_groups() -> None:
    cpu = {f"p{i}": {"max_lanes": 1} for i in range(6)}
    with pytest.raises(ConfigError, match=r"at most 7 groups of pods, these are 8 \(system"):
        PoolConfig.from_dict({"profiles": cpu, "kubernetes": {"queue": "kueue:q"}})
    for settings in ({"queue": "kai:q"}, {"queue": "kueue:q", "drivers": {"max_pods": 0}}):
        assert PoolConfig.from_dict({"profiles": cpu, "kubernetes": settings})


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ({"a": {}, "A": {}}, "several groups of pods would be called a"),
        ({"System": {}}, "several groups of pods would be called system"),
        ({"a.": {}}, r"'a\.' becomes a label"),
        ({"a": {"labels": {"zone": "in(a,b)"}}}, r"profiles\.a\.labels\.zone: .*not selectors"),
    ],
)
def test_names_that_pods_cannot_have(profiles: dict[str, Any], message: str) -> None:
    bounded = {name: {"max_lanes": 1, **profile} for name, profile in profiles.items()}
    with pytest.raises(ConfigError, match=message):
        PoolConfig.from_dict({"profiles": bounded, "kubernetes": {}})
    assert PoolConfig.from_dict({"profiles": bounded})


def test_profiles_that_share_a_claim_share_a_device() -> None:
    pod = {"sharing": "dra:gpu-0"}
    a = {"gpus": 1, "max_lanes": 1, "pod": pod}
    pool = PoolConfig.from_dict({"profiles": {"a": a, "b": a}, "kubernetes": {}})
    assert {profile.device for profile in pool.profiles.values()} == {"gpu-0"}
    with pytest.raises(ConfigError, match=r"profiles\.b\.gpus: claim 'gpu-0' is shared with 'a'"):
        PoolConfig.from_dict({"profiles": {"a": a, "b": {**a, "gpus": 2}}, "kubernetes": {}})


def test_pods_follow_from_lanes() -> None:
    data = on_pods({"gpus": 0.25, "cpus": 0.5, "min_lanes": 5, "max_lanes": 9})
    data["profiles"]["g"]["pod"] = {"lanes": 4, "min_pods": None}
    profile = PoolConfig.from_dict(data).profiles["g"]
    assert (pods.min_pods(profile), pods.max_pods(profile)) == (2, 3)
    assert (pods.pod_gpus(profile), pods.pod_cpus(profile)) == (1, 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        (3, 3),
        ("200m", 0.2),
        ("1.5", 1.5),
        ("4Gi", 4 * 2**30),
        ("4G", 4e9),
        ("512Ki", 512 * 1024),
        ("1e3", 1000),
        ("2E", 2e18),
        ("100n", 1e-7),
    ],
)
def test_quantities(text: str | int, value: float) -> None:
    assert number(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "x", "4GB", "Gi"])
def test_no_quantities(text: str) -> None:
    with pytest.raises(ValueError):
        number(text)


def test_kubernetes_survives_the_round_trip() -> None:
    pool = PoolConfig.from_dict(
        on_pods(
            {"pod": {"sharing": "dra:d", "tolerations": [{"key": "gpu"}], "env_secrets": ["s"]}},
            queue="kueue:q",
            head={"cpus": 2},
        )
    )
    assert PoolConfig.from_json(pool.to_json()) == pool


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        PoolConfig.from_dict({"profiles": {"g": {"gpus": -1, "cpuz": 1}}, "windows": 1})
    assert str(caught.value).count("\n") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this one holds nothing"),
        ("- a\n", "this one holds list"),
        ("profiles: {g: {gpus: 1}\n", "not valid YAML"),
        ("profiles:\n  g: {}\n  g: {gpus: 1}\n", "'g' is given twice"),
        ("profiles: {g: {gpus: !!python/object:os.system 1}}\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_pool_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the pool file"):
        config.load(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a/b", "ä", "x" * 64, None, 3, "a\n"])
def test_odd_names_are_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="caller name .* is not allowed"):
        config.check_name("caller", name)


def test_plain_names_pass() -> None:
    assert config.check_name("caller", "grpo-7_b.1") == "grpo-7_b.1"


def test_errors_of_from_json_are_ours() -> None:
    with pytest.raises(ConfigError):
        PoolConfig.from_json("{")


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.glob("cluster_configs/*.yaml"), *ROOT.glob("examples/*/pool.yaml")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_pool_files_of_this_repository_load(path: Path) -> None:
    assert config.load(path).profiles
