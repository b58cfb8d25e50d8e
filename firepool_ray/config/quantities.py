"""Kubernetes' quantities ("200m", "4Gi") as numbers."""

from __future__ import annotations

_SUFFIXES = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}


def number(quantity: str | int | float) -> float:
    """Raises ``ValueError`` for what is no quantity."""
    text = str(quantity).strip()
    digits = text.rstrip("".join(set("".join(_SUFFIXES))))
    suffix = text[len(digits) :]
    # "1e3" has an exponent, "1E" is a suffix: only the first has digits behind the letter.
    if suffix not in _SUFFIXES:
        raise ValueError(f"{text!r} is no quantity of Kubernetes")
    return float(digits) * _SUFFIXES[suffix]
