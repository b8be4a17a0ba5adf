"""How a benchmark is run."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from specdec.bench.measurements import Cell
from specdec.sampling.params import SamplingParams, Temperature, TruncationParams

Dtype = Literal["float32", "bfloat16", "float16", "float64"]


class BenchSettings(BaseModel):
    """The same for every contender."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1, description="each is measured; 0 is greedy")] = (0.0,)
    batch_sizes: Annotated[tuple[int, ...], Field(min_length=1, description="questions that are answered together")] = (1,)
    queue: Annotated[
        int, Field(ge=1, description="questions for each place of a batch; above 1, the next begins when one ends")
    ] = 1
    dtypes: Annotated[tuple[Dtype, ...], Field(description="of the target; none: its own")] = ()
    max_new_tokens: Annotated[int, Field(ge=1, description="cap of every answer")] = 128
    top_k: Annotated[int | None, Field(ge=1, description="cut above temperature 0")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="cut above temperature 0")] = None
    seed: Annotated[int, Field(ge=0, lt=2**63, description="key of all draws")] = 0
    warmup: Annotated[int, Field(ge=0, description="answers of each contender before a setting is measured")] = 1
    chat: Annotated[bool | None, Field(description="use the chat template; unset: where there is one")] = None

    chat_template_kwargs: Annotated[dict[str, Any], Field(description="variables of the chat template")] = {}

    @field_validator("temperatures", "batch_sizes", "dtypes")
    @classmethod
    def _each_once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(values))

    def described(self) -> dict[str, Any]:
        """As plain data, for the header of a file; what came later only where it is used, as in files from before."""
        unused = {
            name for name, used in (("queue", self.queue > 1), ("chat_template_kwargs", self.chat_template_kwargs)) if not used
        }
        return self.model_dump(mode="json", exclude=unused)

    def cells(self, dtype: str | None) -> list[Cell]:
        """The settings that are measured in one dtype."""
        return [Cell(dtype, temperature, size, self.queue) for temperature in self.temperatures for size in self.batch_sizes]

    def sampling(self, temperature: float, draft: TruncationParams | None) -> SamplingParams:
        """How logits become probabilities for a contender that draws its drafts under `draft`."""
        if not temperature:
            return SamplingParams(temperature=0.0, seed=self.seed, draft=draft)
        return SamplingParams(temperature=temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed, draft=draft)
