"""What decoding costs on a machine: seconds of a target forward by its size, and of a drafter by level.

A cost model is measured by `specdec profile`, or made from a data sheet by `specdec roofline`.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specdec.errors import SpecError
from specdec.files.model_file import read_model, write_model
from specdec.performance.isotonic import Curve, rising

KIND = "cost"

Count = Annotated[int, Field(ge=1, le=2**53)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Facts = dict[str, Any]


class DrafterCost(BaseModel):
    """What one level of a draft costs, ranking included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(description="the drafter")]
    first_seconds: Annotated[Seconds, Field(description="the level below the root, news of the last step included")]
    widths: Annotated[tuple[Count, ...], Field(min_length=1, description="nodes that a later level expands")]
    seconds: Annotated[tuple[Seconds, ...], Field(min_length=1, description="of such a level")]
    spread: Annotated[tuple[Seconds, ...], Field(description="interquartile range / median, by width")] = ()
    row_seconds: Annotated[
        Seconds, Field(description="what each sequence of a batch but one adds to a level, beside its nodes")
    ] = 0.0

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        _check_rising("widths", self.widths)
        _check_size("seconds", self.seconds, "widths", self.widths)
        return self

    @cached_property
    def _curve(self) -> Curve:
        return Curve(self.widths, self.seconds)

    def level(self, width: int) -> float:
        """Seconds of a level below the first that expands `width` nodes; never falls."""
        return self._curve(width)

    def draft(self, expansions: Sequence[int], rows: int = 1) -> float:
        """Seconds of a draft of each row that expands so many nodes level by level, the root (1) first; 0 without a level."""
        if not expansions:
            return 0.0
        levels = self.first_seconds + sum(self.level(rows * width) for width in expansions[1:])
        return levels + self.row_seconds * (rows - 1) * len(expansions)


class CostModel(BaseModel):
    """Seconds of decode steps. `forward_seconds` and `spread` have a row for each context and a column for each width."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Annotated[str, Field(min_length=1, description="where the numbers come from")]
    provenance: Annotated[Facts, Field(description="machine, threads, dtype, versions")] = {}
    widths: Annotated[tuple[Count, ...], Field(min_length=1, description="new tokens of a forward, the root included")]
    contexts: Annotated[tuple[Count, ...], Field(min_length=1, description="cached tokens")]
    forward_seconds: Annotated[tuple[tuple[Seconds, ...], ...], Field(min_length=1, description="verification included")]
    spread: Annotated[tuple[tuple[Seconds, ...], ...], Field(description="interquartile range / median")] = ()
    overhead_seconds: Annotated[Seconds, Field(description="of a step outside draft levels, forward and verification")] = 0.0
    plain_overhead_seconds: Annotated[Seconds, Field(description="the same of plain decoding")] = 0.0
    drafter: Annotated[DrafterCost | None, Field(description="of the profiled strategy; null: costs nothing")] = None

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        _check_rising("widths", self.widths)
        _check_rising("contexts", self.contexts)
        if self.widths[0] != 1:
            raise ValueError(
                f"widths start at {self.widths[0]}; the cost of one token (1) is what all others are compared with"
            )
        _check_size("forward_seconds", self.forward_seconds, "contexts", self.contexts)
        for row in self.forward_seconds:
            _check_size("a row of forward_seconds", row, "widths", self.widths)
        if min(min(row) for row in self.forward_seconds) <= 0:
            raise ValueError("forward_seconds has a 0; a forward takes time")
        return self

    @cached_property
    def _curves(self) -> tuple[Curve, ...]:
        """By context, rising in both directions."""
        rows = [rising(row) for row in self.forward_seconds]
        columns = [rising(column) for column in zip(*rows, strict=True)]
        return tuple(Curve(self.widths, row) for row in zip(*columns, strict=True))

    @cached_property
    def _root(self) -> Curve:
        """By context, of the root alone."""
        return Curve(self.contexts, tuple(curve(1) for curve in self._curves))

    @cached_property
    def _known_widths(self) -> dict[float, Curve]:
        return {}

    def forward(self, new_tokens: float, context: int) -> float:
        """Seconds of a target forward over `new_tokens` (root included; all rows of a batch together); never falls in either.

        Straight lines between what was measured, and beyond the largest width and context as steep as the last half; more
        context costs every width as much as the root alone.
        """
        if new_tokens < 1:
            raise SpecError(f"a forward of {new_tokens} tokens; at least the root is scored")
        last = self.contexts[-1]
        within = self._at_width(new_tokens)(min(context, last))
        return within + (self._root(context) - self._root(last) if context > last else 0.0)

    def _at_width(self, new_tokens: float) -> Curve:
        """By context, of so many tokens; builders that weigh costs ask for the same widths in every step."""
        if new_tokens not in self._known_widths:
            self._known_widths[new_tokens] = Curve(self.contexts, tuple(curve(new_tokens) for curve in self._curves))
        return self._known_widths[new_tokens]

    def draft(self, expansions: Sequence[int], rows: int = 1) -> float:
        """Seconds of drafting, by the number of nodes that each row expands at each level, the root (1) first."""
        return 0.0 if self.drafter is None else self.drafter.draft(expansions, rows)

    def step(self, new_tokens: int, expansions: Sequence[int], context: int) -> float:
        """Seconds of a whole speculative step."""
        return self.draft(expansions) + self.forward(new_tokens, context) + self.overhead_seconds

    def plain(self, context: int) -> float:
        """Seconds of a step of plain decoding, which makes one token."""
        return self.forward(1, context) + self.plain_overhead_seconds


def read_costs(path: Path) -> CostModel:
    """The cost model in a YAML file. Raises SpecError with every mistake and its line."""
    return read_model(path, CostModel, KIND)


def write_costs(path: Path, costs: CostModel) -> None:
    """Write a cost model."""
    write_model(path, costs, KIND)


def _check_rising(name: str, values: Sequence[int]) -> None:
    if list(values) != sorted(set(values)):
        raise ValueError(f"{name} must rise; got {list(values)}")


def _check_size(name: str, values: Sequence[object], of: str, keys: Sequence[int]) -> None:
    if len(values) != len(keys):
        raise ValueError(f"{name} has {len(values)} entries for {len(keys)} {of}")
