"""What a user may ask of sampling: temperature, truncation, penalties, bias, seed."""

import re
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

LEAST_TEMPERATURE = 1e-6
"""Below, logits divided by it leave nothing but the likeliest token, and at last what a float64 can hold."""

MOST_BIAS, MOST_PENALTY = 1e30, 1e6
"""Bounds of what is added to a logit and of what divides it: beyond, a float32 cannot hold what comes of both."""


def _token_id(value: Any, info: ValidationInfo) -> Any:
    """The keys of JSON are texts, and one that is no whole number is left for pydantic to refuse; elsewhere none is."""
    if info.mode == "json" and isinstance(value, str):
        return int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value
    if type(value) is not int:
        raise ValueError("a token id is a whole number")
    return value


def _is_usable(temperature: float) -> float:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"got {temperature:g}, expected 0, which is greedy, or at least {LEAST_TEMPERATURE:g}")
    return temperature


TokenId: TypeAlias = Annotated[int, BeforeValidator(_token_id)]
Temperature: TypeAlias = Annotated[float, Field(ge=0, strict=True), AfterValidator(_is_usable)]
Bias: TypeAlias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS, strict=True)]


class TruncationParams(BaseModel):
    """Temperature and the three ways to truncate the tail."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: Annotated[
        Temperature | None, Field(description="0 is greedy; unset: 1 if any truncation is given, else 0")
    ] = None
    top_k: Annotated[
        int | None, Field(ge=1, strict=True, description="keep the k likeliest tokens, and those tied with the last")
    ] = None
    top_p: Annotated[
        float | None, Field(gt=0, le=1, strict=True, description="keep the smallest set with at least this mass")
    ] = None
    min_p: Annotated[
        float | None, Field(ge=0, le=1, strict=True, description="drop tokens below this share of the likeliest")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _resolve_temperature(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("temperature") is None:
            truncate = any(values.get(name) is not None for name in ("top_k", "top_p", "min_p"))
            return {**values, "temperature": 1.0 if truncate else 0.0}
        return values


class SamplingParams(TruncationParams):
    """How the target's logits become the distribution that is decoded."""

    repetition_penalty: Annotated[
        float,
        Field(ge=1 / MOST_PENALTY, le=MOST_PENALTY, strict=True, description="divides (or multiplies) logits of seen tokens"),
    ] = 1.0
    presence_penalty: Annotated[
        float, Field(ge=-10, le=10, strict=True, description="subtracted once for a generated token")
    ] = 0.0
    frequency_penalty: Annotated[
        float, Field(ge=-10, le=10, strict=True, description="subtracted per generated occurrence")
    ] = 0.0
    logit_bias: Annotated[dict[TokenId, Bias], Field(description="token id -> added to its logit")] = {}
    min_new_tokens: Annotated[int, Field(ge=0, strict=True, description="no stop id before so many tokens")] = 0
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True, description="key of all draws; requests may bring their own")] = 0
    draft: Annotated[
        TruncationParams | None, Field(description="truncation for drawn drafts; unset: the target's, 1 for temperature 0")
    ] = None

    @property
    def draft_truncation(self) -> TruncationParams:
        """The truncation under which a drawing builder draws."""
        if self.draft is not None:
            return self.draft
        return TruncationParams(temperature=self.temperature or 1.0, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)
