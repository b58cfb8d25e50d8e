"""Each way to share a GPU: what it changes in a pod, and what Ray is told."""

from __future__ import annotations

from typing import Any

import pytest

from firepool_ray.config import PoolConfig
from firepool_ray.kube import raycluster, sharing
from firepool_ray.kube.api import Object
from firepool_ray.kube.sharing import Share


def pool_of(**profiles: dict[str, Any]) -> PoolConfig:
    bounded = {name: {"max_lanes": 1, **profile} for name, profile in profiles.items()}
    settings = {"name": "p", "queue": "kai:team"}
    return PoolConfig.from_dict({"profiles": bounded, "kubernetes": settings})


def group_of(pool: PoolConfig, name: str) -> Object:
    groups = raycluster.raycluster(pool, "account")["spec"]["workerGroupSpecs"]
    return next(group for group in groups if group["groupName"] == name)


@pytest.mark.parametrize(
    ("profile", "share"),
    [
        ({"gpus": 0}, Share()),
        ({"gpus": 2}, Share(2, {"nvidia.com/gpu": "2"})),
        ({"gpus": 0.5, "pod": {"lanes": 2}}, Share(1, {"nvidia.com/gpu": "1"})),
        ({"gpus": 1, "pod": {"gpu_resource": "amd.com/gpu"}}, Share(1, {"amd.com/gpu": "1"})),
        (
            {"gpus": 0.5, "pod": {"sharing": "kai-fraction:0.5"}},
            Share(1, annotations={"gpu-fraction": "0.5"}),
        ),
        (
            {"gpus": 0.3, "pod": {"sharing": "kai-memory:4000"}},
            Share(1, annotations={"gpu-memory": "4000"}),
        ),
        (
            {
                "gpus": 0.25,
                "pod": {"sharing": "time-slicing:4", "gpu_resource": "nvidia.com/gpu.shared"},
            },
            Share(1, {"nvidia.com/gpu.shared": "1"}),
        ),
        (
            {"gpus": 2, "pod": {"sharing": "mig:1g.10gb"}},
            Share(2, {"nvidia.com/mig-1g.10gb": "2"}),
        ),
        ({"gpus": 1, "pod": {"sharing": "dra:d"}}, Share(1, claim="d")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_pod_asks_for(profile: dict[str, Any], share: Share) -> None:
    pool = pool_of(a=profile)
    assert sharing.share_of(pool.profiles["a"]) == share
    group = group_of(pool, "a")
    assert group["rayStartParams"]["num-gpus"] == str(share.ray_gpus)
    template = group["template"]
    resources = template["spec"]["containers"][0]["resources"]
    for side in ("limits", "requests"):
        asked = {key: value for key, value in resources[side].items() if "/" in key}
        assert asked == share.limits
    assert template["metadata"].get("annotations", {}) == share.annotations
    assert ("resourceClaims" in template["spec"]) == bool(share.claim)


def test_images_that_share_a_claim_refer_to_one_object() -> None:
    shared = {"gpus": 1, "pod": {"sharing": "dra:gpu-0"}}
    other = {"gpus": 2, "pod": {"sharing": "dra:pair"}}
    pool = pool_of(a=shared, b=shared, c=other)
    claims = list(sharing.claims_of(pool))
    assert [claim["metadata"]["name"] for claim in claims] == ["p-gpu-0", "p-pair"]
    exact = [claim["spec"]["devices"]["requests"][0]["exactly"] for claim in claims]
    assert [(row["deviceClassName"], row["count"]) for row in exact] == [
        ("gpu.nvidia.com", 1),
        ("gpu.nvidia.com", 2),
    ]
    for name in ("a", "b"):
        spec = group_of(pool, name)["template"]["spec"]
        assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "p-gpu-0"}]
        assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_pods_of_one_claim_mount_one_lock() -> None:
    shared = {"gpus": 1, "pod": {"sharing": "dra:d"}}
    pool = pool_of(a=shared, b=shared, c={"gpus": 1})
    volume = {"name": "device-lock", "persistentVolumeClaim": {"claimName": "p-d-lock"}}
    for name in "ab":
        spec = group_of(pool, name)["template"]["spec"]
        assert spec["volumes"] == [volume]
        assert spec["securityContext"]["fsGroup"] == 1000
        (mount,) = spec["containers"][0]["volumeMounts"]
        assert mount == {"name": "device-lock", "mountPath": "/var/lib/firepool/devices"}
    assert "volumes" not in group_of(pool, "c")["template"]["spec"]
    (made,) = sharing.lock_volumes(pool)
    assert (made["metadata"]["name"], made["spec"]["accessModes"]) == (
        "p-d-lock",
        ["ReadWriteOnce"],
    )


def test_a_lock_may_be_a_folder_of_the_node() -> None:
    pool = PoolConfig.from_dict(
        {
            "profiles": {"a": {"gpus": 1, "max_lanes": 1, "pod": {"sharing": "dra:d"}}},
            "kubernetes": {"name": "p", "device_locks": "host:/srv/locks"},
        }
    )
    spec = group_of(pool, "a")["template"]["spec"]
    assert spec["volumes"][0]["hostPath"] == {"path": "/srv/locks", "type": "Directory"}
    assert list(sharing.lock_volumes(pool)) == []
