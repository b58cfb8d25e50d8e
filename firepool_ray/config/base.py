"""What all groups of settings have in common: strict frozen models, and types of fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: What a profile, queue, caller or device may be called: it ends up in actor names and labels.
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]


class Group(BaseModel):
    # Strict: a quoted number in a pool file is a mistake to be told, not a value to be guessed.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)
