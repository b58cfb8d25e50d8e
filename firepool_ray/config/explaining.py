"""Pydantic's complaints, as sentences that begin with the path of the key."""

from __future__ import annotations

import difflib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError


def explain(where: str, error: ValidationError, root: type[BaseModel]) -> str:
    """All mistakes in a ``root``, one a line; ``where`` opens the first."""
    lines = [_explain_one(entry, root) for entry in error.errors(include_url=False)]
    return f"{where}: " + ("\n" + " " * 2).join(lines)


def _explain_one(entry: Any, root: type[BaseModel]) -> str:
    keys = [str(part) for part in entry["loc"] if part != "[key]"]
    path = ".".join(keys)
    if entry["type"] == "extra_forbidden":
        valid = sorted(_group_at(keys, root).model_fields)
        near = difflib.get_close_matches(keys[-1], valid, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{path}: unknown key.{hint} Valid: {', '.join(valid)}."
    if entry["loc"][-1:] == ("[key]",):
        pattern = entry.get("ctx", {}).get("pattern")
        rule = f"match {pattern}" if pattern else "be a string (quote it)"
        return f"{path}: this name is not allowed, it must {rule}"
    message = entry["msg"].removeprefix("Value error, ")
    message = (message[:1].lower() + message[1:]).replace("dictionary", "mapping")
    message = message.partition(" or instance of")[0]
    given = entry.get("input")
    shown = f", not {given!r}" if isinstance(given, str | int | float | bool | None) else ""
    return f"{path}: {message}{shown}" if path else f"{message}{shown}"


def _group_at(keys: list[str], group: type[BaseModel]) -> type[BaseModel]:
    """The group whose key the last of ``keys`` was meant to be."""
    for key in keys[:-1]:
        field = group.model_fields.get(key)
        group = _group_in(field.annotation) or group if field is not None else group
    return group


def _group_in(annotation: Any) -> type[BaseModel] | None:
    """The group that a field's type holds, be it in a mapping, a list or an option."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_group_in(part) for part in typing.get_args(annotation))
    return next(filter(None, found), None)
