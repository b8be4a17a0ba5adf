"""The transformer behind every target that runs on transformers: prefill, tree scoring, commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specdec.errors import NumericsError
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import TargetState
from specdec.interfaces.results import HiddenStates, Scored
from specdec.nn.kv_cache import KvCache
from specdec.nn.prefill_batches import prompt_batches
from specdec.nn.tree_mask import RowNodes, chain_mask, tree_mask, tree_positions
from specdec.targets.admission import Draft, check_features, check_joined, check_prompts, kept_nodes, new_nodes, own_state
from specdec.targets.capability import Limits, MaskPlan, mask_argument
from specdec.targets.model_call import ModelCall, ModelOutput
from specdec.trees.draft_tree import DraftTree


@dataclass(slots=True, eq=False)
class TransformerState(TargetState):
    """The rows' cache and what of their drafts is in it."""

    kv: KvCache
    features: Features
    cache: Any = field(init=False)
    drafts: list[Draft] = field(init=False)
    committed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        from specdec.targets.cache_adapter import slot_cache

        self.cache = slot_cache(self.kv)
        self.committed = list(self.kv.lengths)
        self.drafts = [Draft() for _ in self.committed]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.kv.lengths)

    def check_integrity(self) -> None:
        self.kv.check_integrity()
        if self.committed != self.kv.lengths or len(self.drafts) != len(self.committed):
            raise NumericsError(f"rows of {self.committed} committed tokens; the cache holds {self.kv.lengths}")


class TransformerRuntime:
    """Runs an unmodified model over batches of ragged rows.

    Where the model scores trees, a batch is one forward with explicit masks; else each row is a forward of its own, a
    chain under the model's own causal mask.
    """

    def __init__(self, call: ModelCall, masks: MaskPlan, limits: Limits) -> None:
        self.call = call
        self.masks = masks
        self.limits = limits

    def chains_only(self, because: str) -> "TransformerRuntime":
        """The same runtime for chains: trees are refused with the reason."""
        return TransformerRuntime(self.call, self.masks, replace(self.limits, no_trees_because=because))

    def prefill(self, prompts: Sequence[Sequence[int]], features: Features) -> tuple[TransformerState, tuple[Scored, ...]]:
        """A fresh state, and the answer at each prompt's last token.

        Raises SpecdecError for an empty prompt or one that is longer than the context.
        """
        check_prompts(prompts, self.limits, self.call.vocab_size)
        check_features(features, self.call)
        state = TransformerState(KvCache(self.call.shapes, len(prompts)), features)
        if self.limits.no_trees_because is None:
            batches = prompt_batches(list(map(len, prompts)), self.limits.prefill_chunk, self.call.device.type)
        else:
            batches = [range(row, row + 1) for row in range(len(prompts))]
        rows = [row for batch in batches for row in self._prefill_rows(state, [prompts[r] for r in batch], batch.start)]
        state.kv.lengths = [len(prompt) for prompt in prompts]
        state.committed = list(state.kv.lengths)
        return state, tuple(rows)

    def score(self, given: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        """Logits and hidden states of all nodes not yet scored since the last commit."""
        state = own_state(given, TransformerState)
        rows = [new_nodes(self.limits, row, state.kv.lengths[row], state.drafts[row], tree) for row, tree in enumerate(trees)]
        nodes = max((row.count for row in rows), default=0)
        if nodes == 0:
            scored = [self._nothing(row) for row in rows]
        elif self.limits.no_trees_because is None:
            scored = self._score_batch(state, trees, rows, nodes)
        else:
            scored = [self._score_chain(state, row, tree, rows[row]) for row, tree in enumerate(trees)]
        state.drafts = [Draft(tree.tokens, tree.parents) for tree in trees]
        return scored

    def commit(self, given: TargetState, paths: Sequence[Sequence[int] | None]) -> None:
        """Keep root and path of each row; None keeps nothing. Raises SpecdecError for a path that was not scored."""
        state = own_state(given, TransformerState)
        kept = kept_nodes(state.drafts, paths)
        state.kv.commit(kept)
        state.committed = [count + len(path) for count, path in zip(state.committed, kept, strict=True)]
        state.drafts = [Draft() for _ in kept]

    def keep(self, given: TargetState, rows: Sequence[int]) -> None:
        """Drop all rows but these, ascending; their drafts stay."""
        state = own_state(given, TransformerState)
        state.kv.keep(rows)
        state.committed = [state.committed[row] for row in rows]
        state.drafts = [state.drafts[row] for row in rows]

    def fork(self, given: TargetState, copies: Sequence[int]) -> TransformerState:
        """A state in which row r occurs copies[r] times, without drafts."""
        state = own_state(given, TransformerState)
        return TransformerState(state.kv.fork(copies), state.features)

    def join(self, given: TargetState, other: TargetState) -> None:
        """Append the rows of another state, without drafts. Raises SpecdecError for one with other features."""
        state, news = own_state(given, TransformerState), own_state(other, TransformerState)
        check_joined(state, news)
        state.kv.join(news.kv)
        state.committed += news.committed
        state.drafts += [Draft() for _ in news.drafts]

    def _prefill_rows(self, state: TransformerState, prompts: Sequence[Sequence[int]], first_row: int) -> list[Scored]:
        """Feed prompts chunk by chunk to the rows from first_row on; the LM head runs where a prompt ends."""
        chunk, longest = self.limits.prefill_chunk, max(map(len, prompts))
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        hidden: list[list[HiddenStates]] = [[] for _ in prompts]
        for begin in range(0, longest, chunk):
            parts = [prompt[begin : begin + chunk] for prompt in prompts]
            starts = [min(begin, len(prompt)) for prompt in prompts]
            width = max(map(len, parts))
            state.kv.stage(starts, width, first_row)
            ends = {row: len(part) - 1 for row, part in enumerate(parts) if part and begin + len(part) == len(prompts[row])}
            wanted = sorted(set(ends.values()))
            kept = torch.tensor(wanted, device=self.call.device) if wanted else 1
            output = self._forward_chunk(state, parts, starts, width, kept)
            for row, part in enumerate(parts):
                if row in ends:
                    logits[row] = output.logits[row, wanted.index(ends[row])][None]
                hidden[row].append(_cut(output.hidden, row, len(part)))
        return [Scored(logits[row], _joined(hidden[row])) for row in range(len(prompts))]

    def _forward_chunk(
        self, state: TransformerState, parts: list[Sequence[int]], starts: list[int], width: int, kept: int | Tensor
    ) -> ModelOutput:
        counts = [len(part) for part in parts]
        ids = [[*part, *[0] * (width - len(part))] for part in parts]
        positions = [
            [*range(start, start + count), *[0] * (width - count)] for start, count in zip(starts, counts, strict=True)
        ]
        plain = max(starts) == 0 and min(counts) == width
        if plain or self.limits.no_trees_because is not None:
            mask = None
        else:
            slots = state.kv.staged_width
            mask = self._mask(slots, lambda window: chain_mask(starts, counts, nodes=width, slots=slots, window=window))
        return self._forward(state, ids, positions, mask, kept)

    def _score_batch(
        self, state: TransformerState, trees: Sequence[DraftTree], rows: list[RowNodes], nodes: int
    ) -> list[Scored]:
        starts = [row.length + row.first for row in rows]
        state.kv.stage(starts, nodes)
        ids = [[*tree.tokens[row.first :], *[0] * (nodes - row.count)] for row, tree in zip(rows, trees, strict=True)]
        positions = tree_positions(rows, nodes)
        # Also a lone root gets a mask: without one, sdpa in bfloat16 takes a kernel that is six times slower on CPU.
        slots, span = state.kv.staged_width, 1 + max(map(max, positions))
        mask = self._mask(span, lambda window: tree_mask(rows, nodes=nodes, slots=slots, window=window))
        output = self._forward(state, ids, positions, mask, 0)
        return [
            Scored(output.logits[index, : row.count], _cut(output.hidden, index, row.count), row.first)
            for index, row in enumerate(rows)
        ]

    def _score_chain(self, state: TransformerState, row: int, tree: DraftTree, nodes: RowNodes) -> Scored:
        if not nodes.count:
            return self._nothing(nodes)
        start = nodes.length + nodes.first
        state.kv.stage([start], nodes.count, row)
        positions = [list(range(start, start + nodes.count))]
        output = self._forward(state, [list(tree.tokens[nodes.first :])], positions, None, 0)
        return Scored(output.logits[0], _cut(output.hidden, 0, nodes.count), nodes.first)

    def _mask(self, span: int, draw: Any) -> Any:
        return mask_argument(self.masks, span, self.call.dtype, self.call.device, draw)

    def _forward(
        self, state: TransformerState, ids: list[list[int]], positions: list[list[int]], mask: Any, kept: int | Tensor
    ) -> ModelOutput:
        both = torch.tensor([ids, positions], device=self.call.device)
        return self.call(both[0], both[1], mask, state.cache, state.features, kept)

    def _nothing(self, row: RowNodes) -> Scored:
        return Scored(torch.empty(0, self.call.vocab_size, dtype=self.call.dtype), first_node=row.first)


def _cut(hidden: HiddenStates, row: int, count: int) -> HiddenStates:
    return HiddenStates(
        None if hidden.last is None else hidden.last[row, :count],
        None if hidden.layers is None else hidden.layers[row, :count],
    )


def _joined(parts: list[HiddenStates]) -> HiddenStates:
    if len(parts) == 1:
        return parts[0]
    last = [part.last for part in parts if part.last is not None]
    layers = [part.layers for part in parts if part.layers is not None]
    return HiddenStates(torch.cat(last) if last else None, torch.cat(layers) if layers else None)
