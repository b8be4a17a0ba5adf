"""The rules that read the whole tree once more, in fractions or floats, without tensors: with switches for known mistakes.

A drafted tree is (tokens in draw order, {token: the tree below it}); rows are functions of the drafted path.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch
from reference_rules import Distribution, Drafts, Rows

from specdec.interfaces.declarations import ALL_SHAPES, Reads, Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw

Tree = tuple[tuple[int, ...], dict[int, Any]]
LEAF: Tree = ((), {})
Outcomes = dict[tuple[tuple[int, ...], int], Any]
"""(accepted tokens, next token) -> probability."""
Given = Callable[[Tree, Rows, Rows], Outcomes]


def trees(q: Rows, widths: Sequence[int], drafts: Drafts, path: tuple[int, ...] = ()) -> Iterator[tuple[Tree, Fraction]]:
    """Every drafted tree with its probability; a repeat has no subtree of its own."""
    if len(path) == len(widths):
        yield LEAF, Fraction(1)
        return
    for drawn, mass in drafts(q(path), widths[len(path)]):
        for below, weight in _below(q, widths, drafts, path, tuple(dict.fromkeys(drawn))):
            yield (drawn, below), mass * weight


def _below(
    q: Rows, widths: Sequence[int], drafts: Drafts, path: tuple[int, ...], tokens: tuple[int, ...]
) -> Iterator[tuple[dict[int, Tree], Fraction]]:
    if not tokens:
        yield {}, Fraction(1)
        return
    for tree, mass in trees(q, widths, drafts, (*path, tokens[0])):
        for others, weight in _below(q, widths, drafts, path, tokens[1:]):
            yield {tokens[0]: tree, **others}, mass * weight


def step_distribution(p: Rows, q: Rows, widths: Sequence[int], drafts: Drafts, given: Given) -> Distribution:
    """As `reference_rules.step_distribution`, of a rule that looks at the whole tree."""
    distribution: Distribution = {}
    for tree, mass in trees(q, widths, drafts):
        for (path, token), weight in given(tree, p, q).items():
            key = ((*path, token), len(path))
            distribution[key] = distribution.get(key, Fraction(0)) + mass * weight
    return {key: mass for key, mass in distribution.items() if mass}


def traversal(
    tree: Tree,
    p: Rows,
    q: Rows,
    *,
    replacement: bool,
    reverse: bool = False,
    strike: bool = True,
    weighted: bool = True,
    wrong_at: tuple[int, int] | None = None,
) -> Outcomes:
    """Depth first, leaves before what is above. *Source: arXiv 2505.12398.*

    reverse, strike, weighted: mistakes, namely siblings in reverse order, q not struck, a residual without w.
    wrong_at: (depth, sibling from 1) that is accepted a little too often.
    """
    outcomes: Outcomes = {}

    def visit(path: tuple[int, ...], node: Tree, weight: Any, reached: Any) -> Any:
        """What is left of `reached` after the node and all below it have failed."""
        left, draft, drawn = list(p(path)), list(q(path)) if node[0] else [], node[0]
        seen: set[int] = set()
        for rank, token in enumerate(reversed(drawn) if reverse else drawn, 1):
            chance = min(1, weight * left[token] / draft[token])
            if wrong_at == (len(path) + 1, rank):
                chance = min(1, chance * 1.1)
            reached = visit((*path, token), LEAF if token in seen else node[1].get(token, LEAF), chance, reached)
            seen.add(token)
            scale = weight if weighted else 1
            rest = [max(0, scale * a - b) for a, b in zip(left, draft, strict=True)]
            total = sum(rest)
            if total:
                left, weight = [x / total for x in rest], total / (total + (1 - weight))
            else:
                weight = weight if weight == 1 else 0
            if strike and not replacement:
                draft[token] = 0
                draft = [x / sum(draft) for x in draft] if any(draft) else draft
        for token, prob in enumerate(left):
            if reached * weight * prob:
                outcomes[path, token] = outcomes.get((path, token), 0) + reached * weight * prob
        return reached * (1 - weight)

    visit((), tree, 1, 1)
    return outcomes


def block(
    tree: Tree,
    p: Rows,
    q: Rows,
    *,
    first_failure: bool = False,
    weighted: bool = True,
    certain_ratio: bool = False,
    certain_residual: bool = False,
) -> Outcomes:
    """The last index that passes, of one chain. *Source: arXiv 2403.10444.*

    first_failure, weighted: mistakes, namely the index before the first that fails, and a residual without w.
    certain_ratio, certain_residual: a one-hot q in place of the one that was drawn from. One of them is a mistake; both
    together are lossless, and accept as little as `match`.
    """
    chain = _chain(tree)

    def draft(i: int, *, certain: bool) -> list[Any]:
        return [int(token == chain[i]) for token in range(len(q(chain[:i])))] if certain else list(q(chain[:i]))

    weights: list[Any] = [1]
    for i, token in enumerate(chain):
        weights.append(min(1, weights[-1] * p(chain[:i])[token] / draft(i, certain=certain_ratio)[token]))
    passing: list[Any] = []
    for i, weight in enumerate(weights[:-1]):
        rest = sum(_minus(p(chain[:i]), draft(i, certain=certain_residual), weight))
        passing.append(rest / (rest + (1 - weight)) if rest + (1 - weight) else 1)
    passing.append(weights[-1])
    outcomes: Outcomes = {}
    for tau, reached in _taken(passing, first_failure=first_failure):
        at_end = tau == len(chain)
        row = list(p(chain[:tau]))
        if not at_end:
            row = _minus(row, draft(tau, certain=certain_residual), weights[tau] if weighted else 1)
        row = row if sum(row) else list(p(chain[:tau]))
        for token, prob in enumerate(row):
            if reached * prob:
                outcomes[chain[:tau], token] = reached * prob / sum(row)
    return outcomes


def _taken(passing: Sequence[Any], *, first_failure: bool) -> Iterator[tuple[int, Any]]:
    """(accepted tokens, probability)."""
    reached: Any = 1
    if first_failure:
        for i in range(1, len(passing)):
            yield i - 1, reached * (1 - passing[i])
            reached *= passing[i]
        yield len(passing) - 1, reached
        return
    for i in range(len(passing) - 1, 0, -1):
        yield i, reached * passing[i]
        reached *= 1 - passing[i]
    yield 0, reached


def verifier(given: Callable[..., Outcomes], accepts: frozenset[Draw], shapes: frozenset[Shape] = ALL_SHAPES) -> type[Verifier]:
    """A verifier that draws one of the outcomes."""

    class Reference(Verifier[PartOptions]):
        name = "reference"
        Options = PartOptions

        @classmethod
        def declares(cls, options: PartOptions) -> VerifierDeclaration:
            return VerifierDeclaration(accepts, shapes, reads_q=True, reads=Reads.TREE)

        @classmethod
        def build(cls, options: PartOptions, tools: BuildTools) -> Verifier:
            return cls()

        def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
            if tree.q is None:
                return Verdict((), target_probs.row(0).choose(rng, tree.root_position + 1), all_accepted=True)
            node_at = {tuple(tree.path_tokens(node)): node for node in range(len(tree))}
            vocab_size = tree.q.shape[-1]
            outcomes = given(
                as_tree(tree),
                lambda path: target_probs.row(node_at[path]).dense(vocab_size).tolist(),
                lambda path: tree.q_of(node_at[path]).tolist(),
            )
            kinds = sorted(outcomes)
            weights = torch.tensor([outcomes[kind] for kind in kinds], dtype=torch.float64)
            path, token = kinds[rng.choose(torch.arange(len(kinds)), weights, tree.root_position + 1)]
            nodes = tuple(node_at[path[: depth + 1]] for depth in range(len(path)))
            return Verdict(nodes, token, all_accepted=not tree.children[node_at[path]])

    return Reference


def as_tree(tree: DraftTree, node: int = 0) -> Tree:
    """The drafted tree below a node, in tokens."""
    drawn = tuple(tree.tokens[child] for child in tree.draw_order.get(node, ()))
    return drawn, {tree.tokens[child]: as_tree(tree, child) for child in tree.children[node]}


def _chain(tree: Tree) -> tuple[int, ...]:
    tokens: list[int] = []
    while tree[0]:
        tokens.append(tree[0][0])
        tree = tree[1].get(tree[0][0], LEAF)
    return tuple(tokens)


def _minus(p: Sequence[Any], q: Sequence[Any], weight: Any) -> list[Any]:
    return [max(0, weight * a - b) for a, b in zip(p, q, strict=True)]
