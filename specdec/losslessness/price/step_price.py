"""How far one step's tokens are from the target's distribution, the random draws of the rule integrated out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import Reads
from specdec.interfaces.parts import Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist, point_mass
from specdec.sampling.enumeration import outcomes
from specdec.sampling.keyed_noise import mix
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import RequestRng, TargetRng, seeded
from specdec.trees.draft_tree import SINGLE_DRAWS, DraftTree, Draw, TreeSketch

MOST_DRAFTS = 128
"""Drafts of a node that are gone through one by one; beyond that the likeliest are, and some of the others are drawn."""

SAMPLED_DRAFTS = 64
"""That are drawn of the others."""

SAME = 1e-9
"""What the distribution after a node may differ by, alone and as part of its tree, for a rule that decides node by node."""

SIMPLE = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})

Rows = Callable[[int], TokenDist]


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Of one token, or of several alike. tokens: how many, expected; tv: the distance of its distribution from p there."""

    tokens: float
    tv: float


class _Rows:
    """p by node, as a verifier reads it. fall_back: what `TargetProbs` does. beside: what else it may read, of these nodes."""

    def __init__(self, row: Rows, beside: TargetProbs | None) -> None:
        self.row, self._beside = row, beside

    def __getattr__(self, name: str) -> Any:
        if self._beside is not None:
            return getattr(self._beside, name)
        raise SpecdecError(f"the rule reads {name}, which is known of drafts that were made only")

    def fall_back(self, dist: TokenDist) -> TokenDist:
        return dist


class _Noted(TargetRng):
    """Draws of another RNG, the last one noted."""

    def __init__(self, inner: TargetRng) -> None:
        self._inner = inner
        self.last: tuple[Tensor, Tensor, int] | None = None

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        self.last = ids, probs, position
        return self._inner.choose(ids, probs, position)

    def flip(self, probability: float) -> bool:
        return self._inner.flip(probability)

    def skip(self, position: int) -> None:
        self._inner.skip(position)


def node_distributions(
    verifier: Verifier, tree: DraftTree, row: Rows, vocab_size: int, beside: TargetProbs | None = None
) -> dict[int, tuple[float, Tensor]]:
    """By node after which the rule emits a token: the probability of that, and [vocab] the token's distribution.

    row: p by node of the tree. beside: what else the rule may read.
    """
    drafted: dict[int, set[int]] = {}
    for token, depth in zip(tree.tokens[1:], tree.depths[1:], strict=True):
        drafted.setdefault(tree.root_position + depth, set()).add(token)
    endings: list[tuple[Verdict, TokenDist]] = []

    def run(rng: RequestRng) -> int:
        noted = _Noted(rng.target)
        verdict = verifier.verify(tree, _Rows(row, beside), noted)  # type: ignore[arg-type]
        endings.append((verdict, _last(verdict, noted, tree, drafted)))
        return len(endings) - 1

    reached: dict[int, float] = {}
    emitted: dict[int, Tensor] = {}
    for number, mass in outcomes(run, apart=lambda position: drafted.get(position, set())).items():
        verdict, last = endings[number]
        nodes = (0, *verdict.path)
        for node, dist in zip(nodes, [*(point_mass(tree.tokens[node]) for node in verdict.path), last], strict=True):
            reached[node] = reached.get(node, 0.0) + mass
            if node not in emitted:
                emitted[node] = torch.zeros(vocab_size, dtype=torch.float64, device=row(0).ids.device)
            if dist.point is not None:
                emitted[node][dist.point] += mass
            else:
                ids, probs = dist.ids.to(emitted[node].device), dist.probs.to(emitted[node].device)
                emitted[node].index_add_(0, ids, probs, alpha=mass)
    return {node: (total, emitted[node].div_(total)) for node, total in reached.items() if total}


def _last(verdict: Verdict, noted: _Noted, tree: DraftTree, drafted: dict[int, set[int]]) -> TokenDist:
    """The distribution of the next token in an outcome in which all tokens that were not drafted there are one."""
    position = tree.root_position + len(verdict.path) + 1
    apart = drafted.get(position, set())
    if noted.last is None or noted.last[2] != position or verdict.next_token in apart:
        return point_mass(verdict.next_token)
    ids, probs, _ = noted.last
    wanted = torch.tensor(sorted(apart), dtype=ids.dtype, device=ids.device)
    slots = torch.searchsorted(ids, wanted).clamp_max(len(ids) - 1)
    others = probs.index_fill(0, slots[ids[slots] == wanted], 0.0)
    return TokenDist(ids, others.div_(others.sum()))


def step_prices(
    verifier: Verifier, tree: DraftTree, target_probs: TargetProbs, path: tuple[int, ...], vocab_size: int, key: int
) -> Iterator[TokenPrice]:
    """Of the tokens that a step emits.

    Deterministic drafts: in every outcome of the step. Drawn ones: over what might be drafted after one of the nodes that the
    step came to, which stands for all of them. Where these are too many, the likeliest are gone through and some of the others
    drawn; with several children all are, which can only raise the expected figure, since total variation is convex.

    Args:
        verifier: The rule.
        tree: The step's draft.
        target_probs: Of the target, by node of the tree.
        path: The nodes that were accepted.
        vocab_size: Of p.
        key: Of the draws: which node, and which drafts.

    Raises:
        SpecdecError: For drawn tokens where the rule does not decide node by node, and draws that are not simply from q.
    """
    row = target_probs.row
    if all(kind is Draw.DETERMINISTIC for kind in tree.draw_kind.values()):
        for node, (reached, emitted) in node_distributions(verifier, tree, row, vocab_size, target_probs).items():
            yield TokenPrice(reached, _apart(emitted, row(node).dense(vocab_size)))
        return
    if verifier.declaration.reads is Reads.TREE:
        raise SpecdecError(f"the price of '{verifier.name}' is not measured: it reads whole trees of drawn tokens")
    nodes = (0, *path)
    node = nodes[key % len(nodes)]
    price = _of_all_drafts(verifier, tree, node, row, vocab_size, key) if _children(tree, node) else TokenPrice(1.0, 0.0)
    yield replace(price, tokens=float(len(nodes)))


def _children(tree: DraftTree, node: int) -> tuple[int, ...]:
    """In draw order, repeats kept; scouts left out."""
    return tuple(child for child in tree.draw_order.get(node, ()) if child not in tree.scouts)


def _of_all_drafts(verifier: Verifier, tree: DraftTree, node: int, row: Rows, vocab_size: int, key: int) -> TokenPrice:
    """After a node whose children were drawn: with every draft that q there may give."""
    kind, children = tree.draw_kind[node], _children(tree, node)
    drawn, p = tuple(tree.tokens[child] for child in children), row(node)
    certain = kind is Draw.DETERMINISTIC
    if not (certain or kind in SIMPLE or (len(children) == 1 and kind in SINGLE_DRAWS)):
        raise SpecdecError(
            f"the price of '{verifier.name}' is not measured on {kind} draws, but on i.i.d. and such without replacement"
        )
    q = None if certain else tree.q_of(node)

    def after(drafts: tuple[int, ...]) -> Tensor:
        level = _one_level(drafts, kind, q)
        rows = {0: p, **{child: point_mass(0) for child in range(1, len(level))}}
        return node_distributions(verifier, level, rows.__getitem__, vocab_size)[0][1]

    here = node_distributions(verifier, tree, row, vocab_size).get(node)
    if here is not None and float((here[1] - after(drawn)).abs().max()) > SAME:
        raise SpecdecError(f"the price of '{verifier.name}' is not measured: what it does after a node depends on others")
    if q is None:
        return TokenPrice(1.0, _apart(after(drawn), p.dense(vocab_size)))
    return TokenPrice(1.0, _over_drafts(q.to("cpu", torch.float64), p.dense(vocab_size).cpu(), len(children), kind, after, key))


def _over_drafts(q: Tensor, p: Tensor, count: int, kind: Draw, after: Callable[[tuple[int, ...]], Tensor], key: int) -> float:
    """The total variation from p of what is emitted after so many draws from q. after: the distribution after given ones."""
    replacement, support = kind is Draw.IID, q.nonzero().flatten().tolist()
    if len(support) ** count <= MOST_DRAFTS:
        drafts = list(_every(q, support, count, replacement=replacement))
    elif count == 1:
        return _over_single_drafts(q / q.sum(), p, after, key)
    else:
        number = MOST_DRAFTS + SAMPLED_DRAFTS
        rngs = (seeded(mix(key, place) >> 1).draft for place in range(number))
        drafts = [(tuple(rng.draw(q, count, replacement=replacement)), 1 / number) for rng in rngs]
    emitted = torch.zeros_like(p)
    for tokens, mass in drafts:
        emitted += mass * after(tokens).cpu()
    return _apart(emitted, p)


def _over_single_drafts(q: Tensor, p: Tensor, after: Callable[[tuple[int, ...]], Tensor], key: int) -> float:
    """The likeliest tokens of q and p one by one, and a sum over the others that is estimated from some of them.

    A token is emitted when it is drafted itself, or in the place of another. The first is known for the tokens that were gone
    through; the second is summed over them, those that were drawn with the weight of all that were not looked at.
    """
    head = torch.unique(torch.cat([row.topk(MOST_DRAFTS // 2).indices for row in (q, p)])).tolist()
    tail = ((p + q) / 2).index_fill(0, torch.tensor(head), 0.0)
    left = float(tail.sum())
    drawn = seeded(key >> 1).draft.draw(tail, SAMPLED_DRAFTS, replacement=True) if left > 0 else []
    weights = [1.0] * len(head) + [left / (SAMPLED_DRAFTS * float(tail[token])) for token in drawn]
    own, instead = [], torch.zeros_like(p)
    for token, weight in zip([*head, *drawn], weights, strict=True):
        mass = float(q[token])
        emitted = after((token,)).cpu() if mass else torch.zeros_like(p)
        own.append(mass * float(emitted[token]))
        emitted[token] = 0.0
        instead.add_(emitted, alpha=weight * mass)
    tokens = torch.tensor([*head, *drawn])
    apart = (torch.tensor(own, dtype=torch.float64) + instead[tokens] - p[tokens]).abs()
    return min(1.0, float((apart * torch.tensor(weights, dtype=torch.float64)).sum()) / 2)


def _every(q: Tensor, support: list[int], count: int, *, replacement: bool) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every sequence of draws; shorter ones where q is used up."""
    total = float(q[support].sum())
    if not count or total <= 0:
        yield (), 1.0
        return
    for token in support:
        rest = support if replacement else [other for other in support if other != token]
        for after, mass in _every(q, rest, count - 1, replacement=replacement):
            yield (token, *after), mass * float(q[token]) / total


def _one_level(drawn: tuple[int, ...], kind: Draw, q: Tensor | None) -> DraftTree:
    """A root and the children that were drawn from q."""
    sketch = TreeSketch(0, 0)
    node_of = {token: sketch.add(0, token) for token in dict.fromkeys(drawn)}
    order = {0: tuple(node_of[token] for token in drawn)}
    if q is None:
        return sketch.freeze(kind, draw_order=order)
    return sketch.freeze(kind, draw_order=order, q=q[None], q_row=[0] + [-1] * len(node_of))


def _apart(one: Tensor, other: Tensor) -> float:
    """Total variation of two dense distributions."""
    return float((one - other.to(one.device)).abs().sum()) / 2
