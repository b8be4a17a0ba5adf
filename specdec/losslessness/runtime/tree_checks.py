"""Does a target score trees as it scores their paths one token at a time, and keep the right cache and features after it?"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import Target, TargetState
from specdec.interfaces.results import HiddenStates, Scored
from specdec.losslessness.reference_model import Reference, one_by_one
from specdec.sampling.keyed_noise import mix
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch, root_only

WIDTHS = (2, 4, 8, 16)
"""Forward widths at which noise is measured, beside the strategy's own."""

ROWS, ROUNDS, NODES = 3, 2, 9
"""Of one check: rows of a batch, steps, and nodes of a tree."""


WIDEST_SHARE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Of the spread of the numbers that it moves: width noise beyond it is no rounding in this dtype.

The embedded model in float32 has 3e-5. Tolerances are multiples of the noise,
which the target under test makes itself: this bounds them.
"""


@dataclass(slots=True)
class Noise:
    """The largest difference, between a token alone and the same token in a wide forward, of its logits and of its features.

    logits_share, hidden_share: the largest relative to the spread (the standard deviation) of the row in which it is.
    """

    logits: float = 0.0
    hidden: float = 0.0
    logits_share: float = 0.0
    hidden_share: float = 0.0
    tokens: int = 0

    def add(self, other: "Noise") -> None:
        """Take in what was found elsewhere."""
        self.logits, self.logits_share = max(self.logits, other.logits), max(self.logits_share, other.logits_share)
        self.hidden, self.hidden_share = max(self.hidden, other.hidden), max(self.hidden_share, other.hidden_share)
        self.tokens += other.tokens

    def fault(self, dtype: torch.dtype) -> str | None:
        """Why this is more than rounding in `dtype`; None where it may be rounding, as always in half precision."""
        widest = WIDEST_SHARE.get(dtype, float("inf"))
        for name, share in (("logits", self.logits_share), ("features", self.hidden_share)):
            if not share <= widest:
                return (
                    f"a token's {name} change with what else is in its forward, by {share:.2g} of their spread; rounding in "
                    f"{str(dtype).removeprefix('torch.')} moves them by at most {widest:.2g}"
                )
        return None


@dataclass(slots=True)
class TreeDifferences:
    """The largest differences that were seen, and how much was looked at.

    plain: tree nodes against plain forwards over their paths. sequential: against the same target, one token at a time.
    recomputed: the step after a commit against a fresh prefill. features: hidden states of tree nodes against a prefill's.
    """

    plain: float = 0.0
    sequential: float = 0.0
    recomputed: float = 0.0
    features: float = 0.0
    trees: int = 0
    nodes: int = 0
    commits: int = 0
    faults: list[str] = field(default_factory=list)


def wanted_features(target: Target, layers: Sequence[int]) -> Features:
    """What the drafter asks for, and the last hidden state wherever there is one."""
    return Features(last=target.facts.hidden_size is not None, layers=tuple(layers))


def width_noise(target: Target, text: Sequence[int], first: int, features: Features, widths: Sequence[int]) -> Noise:
    """Each token of `text` from `first` on alone, and in chains of all `widths`."""
    noise = Noise()
    alone = one_by_one(target, text, first, features)
    for width in widths:
        state = target.prefill([list(text[:first])], features).state
        for begin in range(first, len(text) - width + 1, width):
            wide = target.score(state, [chain_of(list(text[begin : begin + width]), begin)])[0]
            target.commit(state, [range(1, width)])
            for node in range(width):
                noise.add(_noise_of(wide, node, alone[begin + node]))
    return noise


def _noise_of(wide: Scored, node: int, alone: Scored) -> Noise:
    """Of one token: as a node of a wide forward, and by itself."""
    logits, hidden = _apart(wide.logits[node], alone.logits[0]), hidden_apart(wide.hidden.rows([node]), alone.hidden)
    rows = [alone.hidden.last] if alone.hidden.last is not None else []
    rows += list(alone.hidden.layers[0]) if alone.hidden.layers is not None else []
    narrowest = min(map(_spread, rows), default=1.0)
    return Noise(logits, hidden, _share(logits, _spread(alone.logits[0])), _share(hidden, narrowest), 1)


def _spread(numbers: Tensor) -> float:
    """The standard deviation of the finite ones; 0 where there are no two."""
    finite = numbers.detach().double()[torch.isfinite(numbers)]
    return float(finite.std(correction=0)) if len(finite) > 1 else 0.0


def _share(difference: float, spread: float) -> float:
    return difference / spread if spread else float("inf") if difference else 0.0


def check_trees(
    target: Target, reference: Reference, prefixes: Sequence[Sequence[int]], features: Features, key: int, seen: TreeDifferences
) -> None:
    """One ragged batch of random trees over several steps: score, commit a path, drop a row. `seen` is added to."""
    texts = [list(prefix) for prefix in prefixes]
    state = target.prefill([text[:-1] for text in texts], features).state
    for step in range(ROUNDS):
        trees = [_tree(target, text, mix(key, step, row)) for row, text in enumerate(texts)]
        scored = target.score(state, trees)
        _compare_nodes(reference, texts, trees, scored, seen)
        seen.trees += len(trees)
        paths = [tree.path(mix(key, step, row, 5) % len(tree)) for row, tree in enumerate(trees)]
        for text, tree, path, answer in zip(texts, trees, paths, scored, strict=True):
            _compare_path(target, text, tree, path, answer, features, seen)
        target.commit(state, paths)
        seen.commits += len(paths)
        for row, (text, tree, path) in enumerate(zip(texts, trees, paths, strict=True)):
            text += [*(tree.tokens[node] for node in path), mix(key, step, row, 6) % target.facts.vocab_size]
        if len(texts) > 1 and step == 0:
            gone = mix(key, 7) % len(texts)
            kept = [row for row in range(len(texts)) if row != gone]
            target.keep(state, kept)
            texts = [texts[row] for row in kept]
        state.check_integrity()
        _compare_cache(target, state, texts, seen)


def _tree(target: Target, text: list[int], key: int) -> DraftTree:
    facts = target.facts
    nodes = NODES if facts.max_tree_nodes is None else min(NODES, facts.max_tree_nodes)
    if facts.max_positions is not None:
        nodes = max(1, min(nodes, (facts.max_positions - len(text)) // ROUNDS))
    return random_tree(
        key, nodes=nodes, root=text[-1], position=len(text) - 1, vocab_size=facts.vocab_size, chain=not facts.trees
    )


def _compare_nodes(
    reference: Reference, texts: list[list[int]], trees: list[DraftTree], scored: list[Scored], seen: TreeDifferences
) -> None:
    for text, tree, answer in zip(texts, trees, scored, strict=True):
        leaves = [node for node in range(len(tree)) if not tree.children[node]]
        branches = [[0, *tree.path(leaf)] for leaf in leaves]
        wanted = [((*text[:-1], *(tree.tokens[node] for node in branch), 0), len(text)) for branch in branches]
        for branch, rows in zip(branches, reference.rows(wanted), strict=True):
            for node, row in zip(branch, rows, strict=True):
                seen.plain = max(seen.plain, _apart(answer.logits[node], row))
        seen.nodes += len(tree)


def _compare_path(
    target: Target, text: list[int], tree: DraftTree, path: list[int], answer: Scored, features: Features, seen: TreeDifferences
) -> None:
    nodes = [0, *path]
    tokens = [*text[:-1], *(tree.tokens[node] for node in nodes)]
    alone = one_by_one(target, tokens, len(text) - 1, features)
    hidden = target.prefill([tokens], features).scored[0].hidden
    for depth, node in enumerate(nodes):
        place = len(text) - 1 + depth
        seen.sequential = max(seen.sequential, _apart(answer.logits[node], alone[place].logits[0]))
        seen.features = max(seen.features, hidden_apart(answer.hidden.rows([node]), hidden.rows([place])))


def _compare_cache(target: Target, state: TargetState, texts: list[list[int]], seen: TreeDifferences) -> None:
    """What the cache gives for the next root, rolled back afterwards, against a prefill from nothing."""
    after = target.score(state, [root_only(text[-1], len(text) - 1) for text in texts])
    target.commit(state, [None] * len(texts))
    if list(state.lengths) != [len(text) - 1 for text in texts]:
        seen.faults.append(f"the cache holds {list(state.lengths)} tokens; {[len(text) - 1 for text in texts]} are committed")
    for text, answer in zip(texts, after, strict=True):
        fresh = target.prefill([text], Features()).scored[0].logits[0]
        seen.recomputed = max(seen.recomputed, _apart(answer.logits[0], fresh))


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of finite logits; infinite where only one is finite, or for NaN."""
    first, second = one.detach().cpu().double(), other.detach().cpu().double()
    both = torch.isfinite(first) & torch.isfinite(second)
    if bool((torch.isfinite(first) != torch.isfinite(second)).any()) or bool((first.isnan() | second.isnan()).any()):
        return float("inf")
    return float((first[both] - second[both]).abs().max()) if bool(both.any()) else 0.0


def hidden_apart(one: HiddenStates, other: HiddenStates) -> float:
    """The largest difference of two sets of features; infinite where they have other shapes."""
    apart = 0.0
    for first, second in ((one.last, other.last), (one.layers, other.layers)):
        if first is None and second is None:
            continue
        if first is None or second is None or first.shape != second.shape:
            return float("inf")
        apart = max(apart, _apart(first, second))
    return apart


def random_tree(key: int, *, nodes: int, root: int, position: int, vocab_size: int, chain: bool = False) -> DraftTree:
    """A tree of at most so many nodes, root included: half of them go on from the last one, the others branch anywhere."""
    sketch = TreeSketch(root, position)
    taken: set[tuple[int, int]] = set()
    for number in range(nodes - 1):
        deeper = chain or mix(key, number, 1) % 2 == 0
        parent = len(sketch) - 1 if deeper else mix(key, number, 2) % len(sketch)
        token = mix(key, number, 3) % vocab_size
        if (parent, token) not in taken:
            taken.add((parent, token))
            sketch.add(parent, token)
    return sketch.freeze(Draw.DETERMINISTIC)


def chain_of(tokens: list[int], position: int) -> DraftTree:
    """A chain of known tokens, the root first."""
    sketch = TreeSketch(tokens[0], position)
    for node, token in enumerate(tokens[1:]):
        sketch.add(node, token)
    return sketch.freeze(Draw.DETERMINISTIC)
