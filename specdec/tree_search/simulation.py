"""Decoding played through from rates and costs, without the model: a step draws which child is accepted, and takes its time."""

from dataclasses import dataclass
from statistics import fmean, stdev

import torch

from specdec.config.resolved_spec import ResolvedSpec
from specdec.errors import SpecError
from specdec.interfaces.declarations import Kind
from specdec.performance.acceptance_profile import Drafted, Rates
from specdec.performance.cost_model import CostModel
from specdec.sampling.keyed_noise import mix, uniforms
from specdec.tree_builders.chain import ChainOptions
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.tree_search.optimizer import step_seconds
from specdec.trees.tree_shape import RankPath, TreeShape


@dataclass(frozen=True, slots=True)
class Task:
    """What is decoded: `answers` times `new_tokens` tokens after a prompt of `prompt_tokens`."""

    prompt_tokens: int = 128
    new_tokens: int = 128
    answers: int = 200

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "new_tokens", "answers"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}: got {getattr(self, name)}; expected at least 1")

    @property
    def mean_context(self) -> int:
        """Cached tokens in the middle of an answer."""
        return self.prompt_tokens + self.new_tokens // 2


@dataclass(frozen=True, slots=True)
class Played:
    """Means over answers, and the standard error of tau's. tokens_per_second leaves the prefill out."""

    tau: float
    tau_error: float
    speedup: float
    seconds: float
    plain_seconds: float
    tokens_per_second: float


def play(shape: TreeShape, rates: Rates, costs: CostModel, task: Task, *, seed: int, drafted: Drafted | None = None) -> Played:
    """Monte Carlo: the first token comes from the prefill; an answer ends in the middle of a step if it must."""
    child_counts = shape.child_counts()
    taus, seconds = [], []
    draws = torch.arange(task.new_tokens * max(shape.depth, 1))
    for answer in range(task.answers):
        made, steps, spent = 1, 0, 0.0
        rng = uniforms(mix(seed, answer), draws).tolist()
        while made < task.new_tokens:
            context = task.prompt_tokens + made - 1
            spent += step_seconds(shape, costs, context=context, drafted=drafted)
            accepted = _accepted(child_counts, rates, rng[steps * shape.depth : (steps + 1) * shape.depth])
            made = min(made + accepted + 1, task.new_tokens)
            steps += 1
        if steps:
            taus.append((made - 1) / steps)
            seconds.append(spent)
    if not taus:
        raise SpecError("new_tokens: got 1, which the prefill makes; a step needs at least 2")
    plain = sum(costs.plain(task.prompt_tokens + made - 1) for made in range(1, task.new_tokens))
    mean = fmean(seconds)
    error = stdev(taus) / len(taus) ** 0.5 if len(taus) > 1 else float("nan")
    return Played(fmean(taus), error, plain / mean, mean, plain, (task.new_tokens - 1) / mean)


def _accepted(child_counts: dict[RankPath, int], rates: Rates, coins: list[float]) -> int:
    """How many drafted tokens one step accepts; a coin in (0, 1) for each level."""
    path: RankPath = ()
    for uniform in coins:
        left = uniform
        for rank, rate in enumerate(rates.children(path)[: child_counts.get(path, 0)]):
            left -= rate
            if left < 0:
                path = (*path, rank)
                break
        else:
            break
    return len(path)


def shape_of(resolved: ResolvedSpec) -> TreeShape:
    """The shape of a strategy; empty for one that drafts nothing. Raises SpecError for a tree that depends on the text."""
    if not resolved.parts[Kind.DRAFTER].declares.drafts:
        return TreeShape(())
    part = resolved.parts[Kind.TREE]
    if isinstance(part.options, ChainOptions):
        return TreeShape.chain(part.options.length)
    if isinstance(part.options, ShapeOptions):
        return part.options.shape(resolved.find_tree)
    raise SpecError(f"{resolved.label}: tree '{part.name}' has no shape of its own; chain, fixed and sampled trees have one")
