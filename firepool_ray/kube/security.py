"""The security context of all pods: what the "restricted" pod security standard asks for."""

from __future__ import annotations

from typing import Any


def pod_security(user: int | None) -> dict[str, Any]:
    """``user`` as ``run_as_user`` in the settings."""
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user is not None:
        security["runAsUser"] = user
    if user != 0:
        security["runAsNonRoot"] = True
    return security
