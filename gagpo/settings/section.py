"""What every section of the settings is: typed, closed to unknown keys, and never changed once it is read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings; an unknown key, a number that is not finite or a wrong type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
