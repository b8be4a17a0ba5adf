"""How often drafts are accepted: by depth, by the child's rank, and by the probability that the drafter gave them.

A rate is unconditional on earlier siblings, as tree search needs it: the chance that child r is the one accepted, given that
its parent was reached. *Source: arXiv 2402.12374 (positional acceptance).*
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from math import isclose
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specdec.errors import SpecError
from specdec.files.model_file import read_model, write_model
from specdec.performance.isotonic import Curve, rising
from specdec.trees.tree_shape import RankPath, TreeShape

KIND = "acceptance"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Ranks in `paths`."""
NONE = "-"
"""A path of `paths` without a token."""

Count = Annotated[int, Field(ge=0, le=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rates:
    """by_depth[d][r]: chance that child r of a node at depth d is accepted, once the node is reached. Deeper: the last row."""

    by_depth: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for depth, row in enumerate(self.by_depth):
            if any(not 0 <= rate <= 1 for rate in row):
                raise SpecError(f"acceptance at depth {depth}: {list(row)}; a rate lies between 0 and 1")
            if float(sum(row)) > 1 and not isclose(float(sum(row)), 1, rel_tol=1e-6):
                raise SpecError(
                    f"acceptance at depth {depth} sums to {float(sum(row)):.4g}; at most one child is accepted, so that the "
                    "rates (unconditional on earlier siblings) sum to at most 1"
                )
        if not self.by_depth:
            raise SpecError("acceptance has no depth; expected a list of rates by rank for each")

    def children(self, path: RankPath) -> tuple[float, ...]:
        """Rates by rank of the children of the node at `path`."""
        return self.by_depth[min(len(path), len(self.by_depth) - 1)]


@dataclass(frozen=True, slots=True)
class Drafted:
    """What is really drafted of a shape, by a drafter that may have nothing to offer: how often anything, and nodes then."""

    chance: float
    nodes: float


class CalibrationBin(BaseModel):
    """Drafted children of reached nodes whose draft probability was about `probability`: how many, and how many accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    probability: Annotated[Share, Field(description="mean of what the drafter gave")]
    tested: Annotated[int, Field(ge=1, le=2**53)]
    accepted: Count


class AcceptanceProfile(BaseModel):
    """Counts of a measurement, or rates by hand."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Annotated[str, Field(min_length=1, description="what was measured, on what")]
    conditioned_on: Annotated[str, Field(description="what the counts are conditioned on, in words")] = "nothing said"
    provenance: Annotated[Facts, Field(description="strategy, prompts, sampling, versions")] = {}
    reached: Annotated[tuple[Count, ...], Field(description="by depth, nodes reached whose children were asked for")] = ()
    accepted: Annotated[tuple[tuple[Count, ...], ...], Field(description="by depth and rank, children accepted")] = ()
    given: Annotated[tuple[tuple[Share, ...], ...], Field(description="rates by depth and rank, in place of counts")] = ()
    calibration: Annotated[tuple[CalibrationBin, ...], Field(description="by rising draft probability")] = ()
    asked: Annotated[tuple[Count, ...], Field(description="by depth, nodes below which the drafter was asked")] = ()
    offered: Annotated[tuple[tuple[Count, ...], ...], Field(description="of these, how many had a child of each rank")] = ()
    paths: Annotated[tuple[str, ...], Field(description="by answer, the ranks of what followed each token, '-' for none")] = ()
    lengths: Annotated[tuple[str, ...], Field(description="by token of each answer, how many levels the drafter offered")] = ()
    path_depth: Annotated[int, Field(ge=0, description="longest path that was looked at")] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.given) == bool(self.reached):
            raise ValueError("either `reached` and `accepted` (counts) or `given` (rates) is needed")
        if len(self.reached) != len(self.accepted):
            raise ValueError(f"reached has {len(self.reached)} depths, accepted {len(self.accepted)}")
        if len(self.asked) != len(self.offered):
            raise ValueError(f"asked has {len(self.asked)} depths, offered {len(self.offered)}")
        for depth, (reached, row) in enumerate(zip(self.reached, self.accepted, strict=True)):
            if sum(row) > reached:
                raise ValueError(f"at depth {depth} more children were accepted ({sum(row)}) than nodes reached ({reached})")
        for bin_ in self.calibration:
            if bin_.accepted > bin_.tested:
                raise ValueError(f"calibration: {bin_.accepted} accepted of {bin_.tested} tested")
        strange = set("".join(self.paths)) - set(DIGITS + NONE + " ")
        if strange:
            raise ValueError(f"paths hold {sorted(strange)}; expected ranks 0-9 and a-z, '-' and spaces")
        if self.lengths and [len(line) for line in self.lengths] != [len(line.split()) for line in self.paths]:
            raise ValueError("lengths need a digit for every path")
        if set("".join(self.lengths)) - set(DIGITS):
            raise ValueError("lengths hold something else than 0-9 and a-z")
        return self

    @cached_property
    def _calibration(self) -> Curve | None:
        if not self.calibration:
            return None
        bins = sorted(self.calibration, key=lambda b: b.probability)
        rates = rising([b.accepted / b.tested for b in bins], [b.tested for b in bins])
        return Curve(tuple(b.probability for b in bins), rates, limit=1.0)

    def rates(self) -> Rates:
        """Rates by depth and rank. Raises SpecError where nothing was ever reached."""
        if self.given:
            return Rates(self.given)
        return rates_of(self.reached, self.accepted)

    def by_rank(self) -> tuple[float, ...]:
        """Rates by rank, all depths together: the position-independent vector."""
        if self.given:
            return _mean_rows(self.given, [1] * len(self.given))
        rows = self.rates().by_depth
        return _mean_rows(rows, self.reached[: len(rows)])

    def drafted(self, shape: TreeShape) -> Drafted:
        """What is drafted of a shape, at the places where its steps begin; all of it, unless the profile counts offers."""
        if not self.asked or not shape.num_nodes:
            return Drafted(1.0, float(shape.num_nodes))
        levels = self._levels_offered(shape)
        nodes = 0.0
        for path in shape.paths:
            chance = levels[len(path) - 1] if len(path) <= len(levels) else 0.0
            for depth, rank in enumerate(path):
                row = self.offered[min(depth, len(self.offered) - 1)]
                chance *= row[rank] / row[0] if rank < len(row) and row[0] else 0.0
            nodes += chance
        return Drafted(levels[0], nodes / levels[0]) if levels and levels[0] else Drafted(0.0, 0.0)

    def _levels_offered(self, shape: TreeShape) -> list[float]:
        """By level, how often there is a best child to draft."""
        if not self.lengths:
            shares = [row[0] / asked if asked else 0.0 for asked, row in zip(self.asked, self.offered, strict=True)]
            return list(accumulate(shares, mul))
        lengths = [[DIGITS.index(digit) for digit in line] for line in self.lengths]
        _, starts = replay(self.trails, shape)
        return [fmean(lengths[answer][place] > level for answer, place in starts) for level in range(self.path_depth)]

    def calibrated(self, probability: float) -> float:
        """The chance that a child is accepted to which the drafter gives this probability, once its parent is reached.

        Never falls as the probability rises. Raises SpecError for a profile without calibration.
        """
        if self._calibration is None:
            raise SpecError(f"the acceptance profile '{self.source}' has no calibration; `specdec acceptance` measures one")
        return self._calibration(probability)

    @cached_property
    def trails(self) -> tuple[tuple[RankPath, ...], ...]:
        """`paths` as ranks: by answer, and by token that may be a root, the ranks of the tokens that followed it."""
        return tuple(tuple(_ranks(word) for word in line.split()) for line in self.paths)


def counts(
    trails: Sequence[Sequence[RankPath]], depth: int, width: int, *, starts: Iterable[tuple[int, int]] | None = None
) -> tuple[list[int], list[list[int]]]:
    """(reached[depth], accepted[depth][width]) over the places of all trails, or over `starts`: (answer, place).

    A path ends where a token is not among `width`, at `depth`, or with the answer: a node at the end counts as not reached,
    since what follows it is unknown, and so does the last place, where nothing is drafted.
    """
    reached = [0] * depth
    accepted = [[0] * width for _ in range(depth)]
    everywhere = ((answer, place) for answer, trail in enumerate(trails) for place in range(len(trail)))
    for answer, place in everywhere if starts is None else starts:
        path, left = trails[answer][place], len(trails[answer]) - place
        for level in range(min(len(path) + 1, depth, left) if left > 1 else 0):
            reached[level] += 1
            if level < len(path):
                accepted[level][path[level]] += 1
    return reached, accepted


def rates_of(reached: Sequence[int], accepted: Sequence[Sequence[int]]) -> Rates:
    """Rates of counts; depths from the first that was never reached on are left out."""
    rows = list(takewhile(lambda pair: pair[0] > 0, zip(reached, accepted, strict=True)))
    return Rates(tuple(tuple(count / n for count in row) for n, row in rows))


def replay(trails: Sequence[Sequence[RankPath]], shape: TreeShape) -> tuple[int, tuple[tuple[int, int], ...]]:
    """What decoding the same answers with this tree would do: tokens made, and (answer, place) of every step.

    Exact for a drafter whose drafts depend on the text alone, as long as the tree lies within what was looked at.
    """
    nodes = set(shape.paths)
    tokens = 0
    starts: list[tuple[int, int]] = []
    for answer, trail in enumerate(trails):
        place = 0
        while place < len(trail):
            starts.append((answer, place))
            path = trail[place]
            taken = next((n for n in range(len(path)) if path[: n + 1] not in nodes), len(path))
            made = min(taken + 1, len(trail) - place)
            tokens += made
            place += made
    return tokens, tuple(starts)


def encoded(trail: Iterable[RankPath]) -> str:
    """A trail as a line of `paths`."""
    return " ".join("".join(DIGITS[rank] for rank in path) or NONE for path in trail)


def _ranks(word: str) -> RankPath:
    return () if word == NONE else tuple(DIGITS.index(digit) for digit in word if digit != NONE)


def _mean_rows(rows: Sequence[Sequence[float]], weights: Sequence[int]) -> tuple[float, ...]:
    width, total = max(map(len, rows)), sum(weights)
    padded = [(*row, *[0.0] * (width - len(row))) for row in rows]
    return tuple(sum(w * row[r] for w, row in zip(weights, padded, strict=True)) / total for r in range(width))


def read_acceptance(path: Path) -> AcceptanceProfile:
    """The profile in a YAML file. Raises SpecError with every mistake and its line."""
    profile = read_model(path, AcceptanceProfile, KIND)
    try:
        profile.rates()
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    return profile


def write_acceptance(path: Path, profile: AcceptanceProfile) -> None:
    """Write a profile."""
    write_model(path, profile, KIND)
