"""Draft trees: a `TreeSketch` while it grows, a frozen `DraftTree` when it goes to the target.

Node 0 is the root: the last committed token, which the target has not yet in its cache. Parents come before children.
Structure lives on the host as plain integers, so that plug-ins read it without tensors; only q is a tensor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from specdec.errors import SpecdecError


class Draw(StrEnum):
    """How the children of one node were picked from the drafter's distribution q, which the tree holds as a whole row.

    DETERMINISTIC: by rank; nothing was drawn. IID: each from q, repeats kept. WITHOUT_REPLACEMENT: each from q without those
    before it. COUPLED: with the target's own noise.
    TOP_THEN_ONE: all children but the last are certain, given q, and the last is drawn from q without them (arXiv 2502.18779).
    PAIR: of two children the first is drawn from q; if it is q's likeliest token a (of equal ones the lowest id), the second is
    drawn from q without a, otherwise the second is a (arXiv 2411.05289).
    A single child of any kind but DETERMINISTIC and COUPLED is one draw from q.
    """

    DETERMINISTIC = "deterministic"
    IID = "iid"
    WITHOUT_REPLACEMENT = "without-replacement"
    COUPLED = "coupled"
    TOP_THEN_ONE = "top-then-one"
    PAIR = "pair"


SINGLE_DRAWS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_THEN_ONE, Draw.PAIR})
"""Kinds that are alike where a node has one child."""


class TreeError(SpecdecError):
    """A tree that is not one: names the node and the rule."""


class TreeSketch:
    """A tree that still grows: `tokens`, `parents` and `depths` by node, root first."""

    __slots__ = ("depths", "parents", "root_position", "tokens")

    def __init__(self, root_token: int, root_position: int) -> None:
        self.root_position = root_position
        self.tokens = [root_token]
        self.parents = [-1]
        self.depths = [0]

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int) -> int:
        """Append a node and return its id."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1

    def path(self, node: int) -> list[int]:
        """The drafted tokens from below the root down to `node`, `node` included; empty for the root."""
        tokens = []
        while node > 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def freeze(
        self,
        draw_kind: Draw,
        *,
        draw_order: Mapping[int, tuple[int, ...]] | None = None,
        q: Tensor | None = None,
        q_row: Sequence[int] | None = None,
    ) -> "DraftTree":
        """The finished tree. Without `draw_order`, siblings count as drawn in node order."""
        size = len(self.tokens)
        children: list[list[int]] = [[] for _ in range(size)]
        for node in range(1, size):
            children[self.parents[node]].append(node)
        drawn = dict(draw_order) if draw_order is not None else {n: tuple(c) for n, c in enumerate(children) if c}
        return DraftTree(
            root_position=self.root_position,
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            depths=tuple(self.depths),
            children=tuple(tuple(c) for c in children),
            draw_order=drawn,
            draw_kind=dict.fromkeys(drawn, draw_kind),
            q=q,
            q_row=tuple(q_row) if q_row is not None else (-1,) * size,
        )


def follow(tree: TreeSketch, tokens: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The way of emitted tokens down a tree: each node that they reach, the root first, with the token emitted there.

    Ends with the first token that the tree does not have. What was drafted at these nodes can be held against the tokens.
    """
    children = {edge: node for node, edge in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    node: int | None = 0
    for token in tokens:
        if node is None:
            return
        yield node, token
        node = children.get((node, token))


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """What a builder that weighs costs expects of its tree, so that the trees of a batch can be cut to what pays for all.

    gains: by node, the chance that it is accepted (1 for the root); a child's is lower than its parent's.
    seconds_for: seconds of a forward by its tokens, those of all rows together. spent_seconds: for drafting.
    """

    gains: tuple[float, ...]
    seconds_for: Callable[[int], float]
    spent_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A finished draft tree.

    root_position: absolute position of the root token in the sequence.
    tokens, parents, depths: by node; the root's parent is -1 and its depth 0.
    children: by node, in node order, each token once.
    draw_order: by parent, its children in the order in which they were drawn; an i.i.d. draw may repeat a child.
    draw_kind: by parent, how these children were picked; stamped by the builder, compared by the verifier.
    q: [rows, vocab] the distributions that were drawn from, in target ids; None where nothing was drawn.
    q_row: by node, the row of q from which its children were drawn, -1 for none.
    scouts: nodes that are scored and never verified.
    source: by node, the index of the drafter that proposed it (empty: a single drafter).
    worth: where the builder weighs costs and makes deterministic draws, so that nodes may be dropped.
    """

    root_position: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    draw_order: Mapping[int, tuple[int, ...]]
    draw_kind: Mapping[int, Draw]
    q: Tensor | None = None
    q_row: tuple[int, ...] = ()
    scouts: frozenset[int] = field(default_factory=frozenset)
    source: tuple[int, ...] = ()
    worth: Worth | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_drafted(self) -> int:
        """Nodes without the root."""
        return len(self.tokens) - 1

    @property
    def max_depth(self) -> int:
        """Levels below the root."""
        return max(self.depths)

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return all(len(c) <= 1 for c in self.children)

    def path(self, node: int) -> list[int]:
        """Node ids from below the root down to `node`, `node` included; empty for the root."""
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """Drafted tokens from below the root down to `node`."""
        return [self.tokens[n] for n in self.path(node)]

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` with this token that may be verified, or None."""
        for child in self.children[node]:
            if self.tokens[child] == token and child not in self.scouts:
                return child
        return None

    def q_of(self, node: int) -> Tensor:
        """[vocab] the distribution from which the children of `node` were drawn. Raises TreeError if nothing was drawn."""
        row = self.q_row[node] if self.q_row else -1
        if self.q is None or row < 0:
            raise TreeError(f"node {node} has no draft distribution: the tree's builder drew nothing there")
        return self.q[row]


def root_only(token: int, position: int) -> DraftTree:
    """The tree of plain decoding: nothing drafted."""
    return TreeSketch(token, position).freeze(Draw.DETERMINISTIC)
