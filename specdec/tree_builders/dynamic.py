"""`dynamic`: EAGLE-2's tree, grown where the drafter is confident."""

from collections.abc import Generator
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, DraftProbs, Frontier
from specdec.sampling.rng import DraftRng
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch


class DynamicOptions(PartOptions):
    """Options of `dynamic`."""

    width: Annotated[int, Field(ge=1, le=256, description="nodes expanded a level, and children of each")] = 8
    depth: Annotated[int, Field(ge=1, le=256, description="levels below the root")] = 5
    nodes: Annotated[int, Field(ge=1, le=4096, description="drafted nodes that are kept, root excluded")] = 16


class Candidate(NamedTuple):
    """A node of the pool; candidates sort best first. cost: minus the log-probability of its path; order: place in the pool."""

    cost: float
    order: int
    token: int
    parent: int
    depth: int


class Dynamic(TreeBuilder[DynamicOptions]):
    """The `nodes` best of a pool that beam search fills: `width` nodes a level, all their `width` best children pooled.

    A score is the sum of log-probabilities along the path, so that it never rises downwards; ties go to the node that came
    first into the pool, so that a parent never loses against its child and what is kept is a tree.

    The published procedure keeps the whole pool and cuts it once, at the end. Here it is cut after every level, and what fell
    out is not expanded: its descendants would be no better and come later, so they would fall out too, and so would all that
    they keep out of the beam. The tree is the same, with fewer draft forwards.
    *Source: arXiv 2406.16858, section 4; its depth counts one level less than its code draws.*
    """

    name: ClassVar[str] = "dynamic"
    Options: ClassVar[type[PartOptions]] = DynamicOptions

    def __init__(self, options: DynamicOptions) -> None:
        self._options = options

    @classmethod
    def declares(cls, options: DynamicOptions) -> BuilderDeclaration:
        """Deterministic draws in a tree (a chain if only one node a level is wanted)."""
        return BuilderDeclaration(
            draw=Draw.DETERMINISTIC,
            shape=Shape.CHAIN if options.width == 1 else Shape.TREE,
            needs=frozenset(Gives),
            max_nodes=options.nodes,
            max_depth=min(options.depth, options.nodes),
            max_children=(options.width,) * min(options.depth, options.nodes),
        )

    @classmethod
    def build(cls, options: DynamicOptions, tools: BuildTools) -> "Dynamic":
        """Nothing to resolve."""
        return cls(options)

    def grow(
        self,
        root_token: int,
        root_position: int,
        budget: Budget,
        rng: DraftRng,
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level: the beam. The partial tree holds the nodes that were expanded, not the pool."""
        options = self._options
        nodes = min(options.nodes, budget.nodes)
        beam = [Candidate(0.0, 0, root_token, -1, 0)]
        pool: list[Candidate] = []
        entered = 1
        sketch = TreeSketch(root_token, root_position)
        grown = {0: 0}
        for depth in range(1, min(options.depth, budget.depth) + 1 if nodes > 0 else 1):
            answer = yield Frontier(sketch, tuple(grown[node.order] for node in beam))
            children = _children(answer, beam, options.width, entered)
            entered += len(children)
            pool = sorted(pool + children)[:nodes]
            beam = [c for c in pool if c.depth == depth and c.token not in budget.stop_ids][: options.width]
            if not beam:
                break
            for node in beam:
                grown[node.order] = sketch.add(grown[node.parent], node.token)
        return _tree(root_token, root_position, pool)


def _children(answer: Answer, beam: list[Candidate], width: int, first: int) -> list[Candidate]:
    """All children of the beam; the pool numbers them from `first` on."""
    if isinstance(answer, DraftProbs):
        raise SpecdecError("'dynamic' ranks logits or candidates; it received a warped q")
    children: list[Candidate] = []
    for parent, tokens, scores in zip(beam, *answer.top(width), strict=True):
        for token, score in zip(tokens, scores, strict=True):
            order = first + len(children)
            children.append(Candidate(parent.cost - min(score, 0.0), order, token, parent.order, parent.depth + 1))
    return children


def _tree(root_token: int, root_position: int, pool: list[Candidate]) -> DraftTree:
    sketch = TreeSketch(root_token, root_position)
    node = {0: 0}
    for kept in sorted(pool, key=lambda candidate: candidate.order):
        node[kept.order] = sketch.add(node[kept.parent], kept.token)
    return sketch.freeze(Draw.DETERMINISTIC)
