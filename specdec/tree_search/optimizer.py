"""The size and depth at which a machine decodes fastest: expected tokens against measured seconds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from specdec.errors import SpecError
from specdec.performance.acceptance_profile import AcceptanceProfile, Drafted, Rates, counts, rates_of, replay
from specdec.performance.cost_model import CostModel
from specdec.tree_search.brute_force import brute_force
from specdec.tree_search.dynamic_programming import optimal_trees
from specdec.tree_search.expected_tokens import ROOT_ONLY, expansions, expected_tokens
from specdec.tree_search.families import DRAWS, Family, family_shapes
from specdec.tree_search.greedy import best_first
from specdec.trees.tree_shape import TreeShape

TIE = 1e-9
"""Relative gain below which a larger tree is no better."""

ROUNDS = 3
"""How often rates are counted anew where the steps of the tree that was found begin."""


class Method(StrEnum):
    """dynamic: the dynamic program, optimal. greedy: best-first. brute: every tree, for few nodes."""

    DYNAMIC = "dynamic"
    GREEDY = "greedy"
    BRUTE = "brute"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is searched. sizes: tokens that the target may score, the root included; depth: levels at most.

    family: the builder whose shapes these are; but for ANY, they are searched in one way, whatever the method.
    """

    sizes: tuple[int, ...]
    depth: int
    method: Method = Method.DYNAMIC
    family: Family = Family.ANY

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or self.depth < 1:
            raise SpecError(f"a search needs sizes of at least 1 and a depth of at least 1; got {self.sizes} and {self.depth}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape and its prediction. tokens: of a step, the target's own included; speedup: against plain decoding there."""

    shape: TreeShape
    tokens: float
    step_seconds: float
    speedup: float

    @property
    def size(self) -> int:
        """Tokens that the target scores, the root included."""
        return self.shape.num_nodes + 1


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest candidate, and the fastest of each size in rising order. replayed: tokens are counted on the answers."""

    best: Candidate
    by_size: tuple[Candidate, ...]
    replayed: bool


def step_seconds(shape: TreeShape, costs: CostModel, *, context: int, drafted: Drafted | None = None) -> float:
    """Mean seconds of a step, of plain decoding for no shape; where nothing is drafted, the root is scored alone."""
    if not shape.num_nodes:
        return costs.plain(context)
    whole = drafted if drafted is not None else Drafted(1.0, float(shape.num_nodes))
    forward = (1 - whole.chance) * costs.forward(1, context) + whole.chance * costs.forward(1 + whole.nodes, context)
    return costs.draft(expansions(shape)) + forward + costs.overhead_seconds


def predicted(shape: TreeShape, tokens: float, costs: CostModel, *, context: int, drafted: Drafted | None = None) -> Candidate:
    """S = tokens x t(plain) / (t(n) + drafting + overhead); plain decoding itself is 1.

    drafted: what the drafter offers of the shape; None: all of it.
    """
    if not shape.num_nodes:
        return Candidate(shape, 1.0, costs.plain(context), 1.0)
    seconds = step_seconds(shape, costs, context=context, drafted=drafted)
    return Candidate(shape, tokens, seconds, tokens * costs.plain(context) / seconds)


def shapes(rates: Rates, bounds: Bounds) -> Iterator[TreeShape]:
    """The best tree of every size and bound on depth, plain decoding first; repeats are left out."""
    seen = {ROOT_ONLY}
    yield ROOT_ONLY
    largest = max(bounds.sizes)
    if bounds.family is not Family.ANY:
        every = family_shapes(bounds.family, nodes=largest - 1, depth=bounds.depth, by_depth=rates.by_depth)
        yield from (shape for shape in every if shape.num_nodes + 1 in bounds.sizes)
        return
    for levels in range(1, min(bounds.depth, largest - 1) + 1):
        optima = optimal_trees(rates.by_depth, nodes=largest - 1, depth=levels) if bounds.method is Method.DYNAMIC else None
        for size in sorted(set(bounds.sizes) - {1}):
            if optima is not None:
                shape = optima.shape(size)
            elif bounds.method is Method.GREEDY:
                shape = best_first(rates.children, nodes=size - 1, depth=levels)
            else:
                width = max(map(len, rates.by_depth))
                shape = brute_force(rates.children, nodes=size - 1, depth=levels, width=width)
            if shape not in seen:
                seen.add(shape)
                yield shape


def best_tree(
    rates: Rates,
    costs: CostModel,
    bounds: Bounds,
    *,
    context: int,
    tokens_of: Callable[[TreeShape], float] | None = None,
    drafted_of: Callable[[TreeShape], Drafted] | None = None,
) -> Found:
    """The fastest tree; plain decoding where nothing beats it, the smaller of equals.

    tokens_of: expected tokens of a shape; None: the closed form. drafted_of: what is drafted of it; None: all.
    *Source: arXiv 2402.12374, section 3.3.*
    """
    count = tokens_of if tokens_of is not None else lambda shape: float(expected_tokens(shape, rates.children))
    by_size: dict[int, Candidate] = {}
    for shape in shapes(rates, bounds):
        drafted = None if drafted_of is None else drafted_of(shape)
        candidate = predicted(shape, count(shape), costs, context=context, drafted=drafted)
        if candidate.size not in by_size or candidate.speedup > by_size[candidate.size].speedup * (1 + TIE):
            by_size[candidate.size] = candidate
    ordered = tuple(by_size[size] for size in sorted(by_size))
    best = ordered[0]
    for candidate in ordered:
        if candidate.speedup > best.speedup * (1 + TIE):
            best = candidate
    return Found(best, ordered, replayed=tokens_of is not None)


def search_tree(profile: AcceptanceProfile, costs: CostModel, bounds: Bounds, *, context: int, by_rank: bool = False) -> Found:
    """The fastest tree for a profile on a machine.

    by_rank: with one vector of rates for all depths. Where the profile has the paths of answers, shapes come from the rates and
    their tokens from replaying the answers, and the rates are counted anew where the found tree's steps begin, some rounds.
    Raises SpecError for a family of drawn trees and a profile of drafts that were not drawn.
    """
    rates = Rates((profile.by_rank(),)) if by_rank else profile.rates()
    _check_kind(profile, bounds.family)
    if not profile.paths:
        return best_tree(rates, costs, bounds, context=context, drafted_of=profile.drafted)
    bounds = replace(bounds, depth=min(bounds.depth, profile.path_depth))

    def again(rates: Rates) -> Found:
        tau = partial(replayed_tau, profile)
        return best_tree(rates, costs, bounds, context=context, tokens_of=tau, drafted_of=profile.drafted)

    found = again(rates)
    for _ in range(0 if by_rank else ROUNDS):
        new = again(rates_for(profile, found.best.shape, by_rank=False))
        if new.best.speedup <= found.best.speedup * (1 + TIE):
            break
        found = new
    return found


def _check_kind(profile: AcceptanceProfile, family: Family) -> None:
    """Raise SpecError for a family of drawn trees and a profile that counts drafts which were picked, or drawn otherwise."""
    if family is Family.ANY:
        return
    draw = profile.provenance.get("draw")
    if not profile.paths and (draw is None or draw in DRAWS[family]):
        return
    counted = "picked by rank" if profile.paths else f"{draw} draws"
    raise SpecError(
        f"the profile '{profile.source}' counts drafts that were {counted}; '{family}' draws them otherwise: measure the own "
        f"steps of a strategy with such a tree (specdec acceptance STRATEGY --own-steps --set tree.use={family})"
    )


def rates_for(profile: AcceptanceProfile, shape: TreeShape, *, by_rank: bool) -> Rates:
    """The rates that a tree meets: where the profile has the paths of answers, counted where the tree's own steps begin."""
    if by_rank:
        return Rates((profile.by_rank(),))
    if not profile.paths or not shape.num_nodes:
        return profile.rates()
    width = max(map(len, profile.accepted))
    _, starts = replay(profile.trails, shape)
    return rates_of(*counts(profile.trails, profile.path_depth, width, starts=starts))


def replayed_tau(profile: AcceptanceProfile, shape: TreeShape) -> float:
    """Tokens per step that the profile's answers would have taken with this tree."""
    tokens, starts = replay(profile.trails, shape)
    return tokens / len(starts)
