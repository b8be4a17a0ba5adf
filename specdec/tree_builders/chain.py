"""`chain`: one draft token a level."""

from collections.abc import Generator
from math import exp
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, DraftProbs, Frontier
from specdec.sampling.rng import DraftRng
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch


class ChainOptions(PartOptions):
    """Options of `chain`."""

    length: Annotated[int, Field(ge=1, le=256, description="draft tokens a step")] = 5
    draw: Annotated[
        Literal["deterministic", "sampled"], Field(description="the likeliest token, or one drawn from the drafter's q")
    ] = "deterministic"
    fallback: Annotated[
        float | None,
        Field(ge=0, le=1, description="stop drafting where the drafter's likeliest token has less probability; unset: never"),
    ] = None


class Chain(TreeBuilder[ChainOptions]):
    """A chain of draft tokens, each the drafter's likeliest or one draw from its q.

    Length depends on the options, the budget, tokens that are kept (nothing follows a stop id, or a level that offers no token)
    and what the drafter says after them, never on a token that is then left out: drawn tokens keep the distribution q.
    *Source: arXiv 2211.17192, algorithm 1; 2302.01318; fallback: 2302.07863, section 3.1.*
    """

    name: ClassVar[str] = "chain"
    Options: ClassVar[type[PartOptions]] = ChainOptions

    def __init__(self, options: ChainOptions) -> None:
        self._options = options

    @classmethod
    def declares(cls, options: ChainOptions) -> BuilderDeclaration:
        """Deterministic or i.i.d. draws in a chain."""
        sampled = options.draw == "sampled"
        return BuilderDeclaration(
            draw=Draw.IID if sampled else Draw.DETERMINISTIC,
            shape=Shape.CHAIN,
            needs=frozenset({Gives.DISTRIBUTIONS}) if sampled else frozenset(Gives),
            max_nodes=options.length,
            max_depth=options.length,
            max_children=(1,) * options.length,
        )

    @classmethod
    def build(cls, options: ChainOptions, tools: BuildTools) -> "Chain":
        """Nothing to resolve."""
        return cls(options)

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """Level by level; q: [levels, vocab] as received."""
        sampled = self._options.draw == "sampled"
        sketch = TreeSketch(root_token, root_position)
        rows: list[Tensor] = []
        node = 0
        for _ in range(min(self._options.length, budget.nodes, budget.depth)):
            answer = yield Frontier(sketch, (node,))
            if self._options.fallback is not None and _likeliest(answer) < self._options.fallback:
                break
            tokens = _draw(answer, rng) if sampled else _best(answer)
            if not tokens:
                break
            if isinstance(answer, DraftProbs):
                rows.append(answer.q)
            node = sketch.add(node, tokens[0])
            if tokens[0] in budget.stop_ids:
                break
        if not sampled:
            return sketch.freeze(Draw.DETERMINISTIC)
        q_row = [level if level < len(rows) else -1 for level in range(len(sketch))]
        return sketch.freeze(Draw.IID, q=torch.cat(rows) if rows else None, q_row=q_row)


def _likeliest(answer: Answer) -> float:
    """The probability of the drafter's likeliest token, of its q where drafts are drawn; 0 where it offers none."""
    if isinstance(answer, DraftProbs):
        return float(answer.q[0].max())
    scores = answer.top(1)[1][0]
    return exp(scores[0]) if scores else 0.0


def _best(answer: Answer) -> list[int]:
    if isinstance(answer, DraftProbs):
        raise SpecdecError("a deterministic 'chain' ranks logits or candidates; it received a warped q")
    return answer.top(1)[0][0]


def _draw(answer: Answer, rng: DraftRng) -> list[int]:
    if not isinstance(answer, DraftProbs):
        raise SpecdecError("a sampled 'chain' draws from a warped q; it received logits or candidates")
    return rng.draw(answer.q[0], 1, replacement=True) if bool(answer.q[0].any()) else []
