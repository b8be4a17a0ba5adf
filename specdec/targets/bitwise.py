"""The runtime of bitwise mode: every token's bits are those that plain decoding in this mode gives it.

Prompt tokens, plain steps and the nodes of trees, of all sequences of a batch, share forwards of one fixed shape; trees that
are larger take several. It serves proofs, debugging and reproducible serving, and is no fast path.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.errors import NumericsError
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import TargetState
from specdec.interfaces.results import HiddenStates, Scored
from specdec.nn.path_kv_cache import PathCache
from specdec.targets.admission import Draft, check_features, check_joined, check_prompts, kept_nodes, new_nodes, own_state
from specdec.targets.bitwise_forward import SHORTEST, FixedForward, PlacedToken, path_length
from specdec.targets.bitwise_proof import fault_at
from specdec.targets.capability import Limits
from specdec.trees.draft_tree import DraftTree


@dataclass(slots=True, eq=False)
class BitwiseState(TargetState):
    """The rows' cache and what of their drafts is in it."""

    kv: PathCache
    features: Features
    drafts: list[Draft] = field(init=False)

    def __post_init__(self) -> None:
        self.drafts = [Draft() for _ in self.kv.paths]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.kv.lengths)

    def check_integrity(self) -> None:
        self.kv.check_integrity()
        scored, cached = [len(draft.tokens) for draft in self.drafts], [len(nodes) for nodes in self.kv.nodes]
        if scored != cached:
            raise NumericsError(f"drafts of {scored} nodes; the cache holds {cached}")


@dataclass(frozen=True, slots=True, eq=False)
class _Answers:
    """By token, in the order in which they were given: float32 (or wider) logits, None where not wanted; hidden states."""

    logits: list[Tensor | None]
    hidden: HiddenStates

    def scored(self, first: int, count: int, first_node: int = 0) -> Scored:
        """What belongs to `count` tokens from `first` on; logits of the wanted ones only."""
        rows = [row for row in self.logits[first : first + count] if row is not None]
        return Scored(torch.stack(rows), self.hidden.rows(list(range(first, first + count))), first_node)


class BitwiseRuntime:
    """Runs an unmodified model over batches, each token in a row of its own of a forward of fixed shape.

    A path's buffer has a length that its position fixes; each length is proved when it is first needed, and again when the
    number of threads has changed. sample: ids of a text for these proofs.
    """

    def __init__(self, forward: FixedForward, limits: Limits, sample: Sequence[int] = ()) -> None:
        self.call = forward.call
        self.masks = forward.masks
        self.limits = limits
        self.width = forward.width
        self._forward = forward
        self._sample = tuple(sample)
        self._proved = {(SHORTEST, torch.get_num_threads())}

    def prefill(self, prompts: Sequence[Sequence[int]], features: Features) -> tuple[BitwiseState, tuple[Scored, ...]]:
        """A fresh state, and the answer at each prompt's last token.

        Raises SpecdecError for an empty prompt, TargetMismatch for one that is longer than the context.
        """
        check_prompts(prompts, self.limits, self.call.vocab_size)
        check_features(features, self.call)
        self._prove(at for prompt in prompts for at in range(len(prompt)))
        state = BitwiseState(self._forward.cache(len(prompts)), features)
        tokens = []
        for row, prompt in enumerate(prompts):
            state.kv.grow(row, len(prompt))
            slots, last = state.kv.nodes[row], len(prompt) - 1
            tokens += [PlacedToken(token, slots[at], slots, at, wanted=at == last) for at, token in enumerate(prompt)]
        answers = self._run(state, tokens)
        state.kv.commit([range(len(prompt)) for prompt in prompts])
        firsts = _firsts([len(prompt) for prompt in prompts])
        return state, tuple(answers.scored(first, len(prompt)) for first, prompt in zip(firsts, prompts, strict=True))

    def score(self, given: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        """Logits and hidden states of all nodes not yet scored since the last commit."""
        state = own_state(given, BitwiseState)
        lengths = state.kv.lengths
        rows = [new_nodes(self.limits, row, lengths[row], state.drafts[row], tree) for row, tree in enumerate(trees)]
        self._prove(nodes.length + depth for nodes in rows for depth in nodes.depths[nodes.first :])
        tokens: list[PlacedToken] = []
        for row, (nodes, tree) in enumerate(zip(rows, trees, strict=True)):
            state.kv.grow(row, len(tree))
            tokens += _placed(state.kv, row, tree, nodes.first)
        answers = self._run(state, tokens)
        state.drafts = [Draft(tree.tokens, tree.parents) for tree in trees]
        firsts = _firsts([nodes.count for nodes in rows])
        return [
            answers.scored(first, nodes.count, nodes.first) if nodes.count else self._nothing(nodes.first)
            for first, nodes in zip(firsts, rows, strict=True)
        ]

    def commit(self, given: TargetState, paths: Sequence[Sequence[int] | None]) -> None:
        """Keep root and path of each row; None keeps nothing. Raises SpecdecError for a path that was not scored."""
        state = own_state(given, BitwiseState)
        state.kv.commit(kept_nodes(state.drafts, paths))
        state.drafts = [Draft() for _ in state.drafts]

    def keep(self, given: TargetState, rows: Sequence[int]) -> None:
        """Drop all rows but these, ascending; their drafts stay."""
        state = own_state(given, BitwiseState)
        state.kv.keep(rows)
        state.drafts = [state.drafts[row] for row in rows]

    def fork(self, given: TargetState, copies: Sequence[int]) -> BitwiseState:
        """A state in which row r occurs copies[r] times, without drafts."""
        state = own_state(given, BitwiseState)
        return BitwiseState(state.kv.fork(copies), state.features)

    def join(self, given: TargetState, other: TargetState) -> None:
        """Append the rows of another state, without drafts. Raises SpecdecError for one with other features."""
        state, news = own_state(given, BitwiseState), own_state(other, BitwiseState)
        check_joined(state, news)
        state.kv.join(news.kv)
        state.drafts += [Draft() for _ in news.drafts]

    def _run(self, state: BitwiseState, tokens: Sequence[PlacedToken]) -> _Answers:
        """Forward all tokens; those above others come before them."""
        logits: list[Tensor | None] = [None] * len(tokens)
        order, parts = [], []
        for length, places in self._forwards(tokens):
            output = self._forward(state.kv, [tokens[place] for place in places], length, state.features)
            for row, place in enumerate(places):
                if tokens[place].wanted:
                    wide = torch.float64 if output.logits.dtype == torch.float64 else torch.float32
                    logits[place] = output.logits[row, 0].to(wide)
            order += places
            parts.append(_first_rows(output.hidden, len(places)))
        back = torch.tensor(order).argsort().tolist()
        return _Answers(logits, _joined(parts).rows(back) if parts else HiddenStates())

    def _forwards(self, tokens: Sequence[PlacedToken]) -> Iterator[tuple[int, list[int]]]:
        """Length, and the places of up to `width` tokens: shorter paths first, else as they come."""
        lengths = [path_length(token.position) for token in tokens]
        for length in sorted(set(lengths)):
            places = [place for place, own in enumerate(lengths) if own == length]
            for begin in range(0, len(places), self.width):
                yield length, places[begin : begin + self.width]

    def _prove(self, positions: Iterable[int]) -> None:
        """Try the path buffers of these positions that have not been tried. Raises NumericsError before anything is changed."""
        threads = torch.get_num_threads()
        for length in sorted({path_length(position) for position in positions}):
            if (length, threads) in self._proved:
                continue
            fault = fault_at(self._forward, length, self.limits.max_positions, self._sample)
            if fault is not None:
                raise NumericsError(
                    f"bitwise mode ends here: {threads} threads, width {self.width}, paths of {length} tokens: {fault}; "
                    "a smaller max_context, another dtype or another number of threads may work"
                )
            self._proved.add((length, threads))

    def _nothing(self, first: int) -> Scored:
        return Scored(torch.empty(0, self.call.vocab_size, dtype=self.call.dtype), first_node=first)


def _placed(kv: PathCache, row: int, tree: DraftTree, first: int) -> list[PlacedToken]:
    """The nodes of a tree from `first` on, in the slots of its row's draft."""
    prefix, slots = kv.paths[row], kv.nodes[row]
    above: list[tuple[int, ...]] = []
    for node, parent in enumerate(tree.parents):
        above.append((*above[parent], slots[parent]) if node else ())
    return [PlacedToken(tree.tokens[n], slots[n], prefix, len(prefix), above[n]) for n in range(first, len(tree))]


def _firsts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:row]) for row in range(len(counts))]


def _first_rows(hidden: HiddenStates, count: int) -> HiddenStates:
    return HiddenStates(
        None if hidden.last is None else hidden.last[:count, 0], None if hidden.layers is None else hidden.layers[:count, 0]
    )


def _joined(parts: Sequence[HiddenStates]) -> HiddenStates:
    last = [part.last for part in parts if part.last is not None]
    layers = [part.layers for part in parts if part.layers is not None]
    return HiddenStates(torch.cat(last) if last else None, torch.cat(layers) if layers else None)
