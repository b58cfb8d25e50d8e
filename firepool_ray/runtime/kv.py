"""The pool's two facts in Ray's internal key-value store: its settings and its epochs.

Called by ``runtime.pool`` (settings) and once per controller start (epoch). A large constructor
argument would make a crashed actor unrestartable, so the settings travel by this store. All calls
block for about a millisecond: not for an event loop in steady state.
"""

from __future__ import annotations

from ray.experimental import internal_kv

from firepool_ray.config import PoolConfig
from firepool_ray.errors import ConfigError

_SPACE = "firepool"
_EPOCH = "epoch/"


def put_config(config: PoolConfig) -> None:
    internal_kv._internal_kv_put("config", config.to_json(), overwrite=True, namespace=_SPACE)


def get_config() -> PoolConfig:
    """Raises ``ConfigError`` if no pool was started on this cluster."""
    text = internal_kv._internal_kv_get("config", namespace=_SPACE)
    if not text:
        raise ConfigError("this cluster holds no pool settings: start the pool with `firepool up`")
    return PoolConfig.from_json(text.decode())


def claim_epoch() -> int:
    """Claim the next epoch with a put that refuses to overwrite: two claimants never share one."""
    keys = internal_kv._internal_kv_list(_EPOCH, namespace=_SPACE)
    epoch = max((int(key.decode().removeprefix(_EPOCH)) for key in keys), default=0)
    while True:
        epoch += 1
        taken = internal_kv._internal_kv_put(
            f"{_EPOCH}{epoch}", b"1", overwrite=False, namespace=_SPACE
        )
        if not taken:
            break
    for key in keys:
        if int(key.decode().removeprefix(_EPOCH)) < epoch - 1:
            internal_kv._internal_kv_del(key, namespace=_SPACE)
    return epoch


def latest_epoch() -> int:
    keys = internal_kv._internal_kv_list(_EPOCH, namespace=_SPACE)
    return max((int(key.decode().removeprefix(_EPOCH)) for key in keys), default=0)
