"""Drafting for the rows of a batch with a head: true features into a stable cache, predicted ones behind it, forgotten.

With n pairs cached, the root's included, level j of a draft stands at position n + j - 1, the position of its feature.
*Source: arXiv 2401.15077, section 4.1; 2503.01840, section 3.1.*
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from specdec.errors import TargetMismatch
from specdec.heads.fused_head import FusedHead
from specdec.heads.sequence import SequenceDraft, same_prompt
from specdec.heads.shared_weights import Embed, LmHead
from specdec.interfaces.parts import DraftSession
from specdec.interfaces.proposals import Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.nn.kv_cache import KvCache, LayerShape
from specdec.nn.prefill_batches import prompt_batches
from specdec.nn.tree_mask import RowNodes, additive, chain_mask, tree_mask, tree_positions

CHUNK = 512
"""Pairs of a prompt per forward."""

MOST_PENDING = 64
"""Pairs of a sequence that wait for a question: in a mixture it may be long in coming, and then has to be answered at once."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftingHead:
    """A head that is ready to draft. target_ids: [drafts] of its columns; None: all of the target's. name: for messages."""

    head: FusedHead
    embed: Embed
    lm_head: LmHead
    target_ids: Tensor | None
    dtype: torch.dtype
    device: torch.device
    name: str = "the head"

    @property
    def shifted(self) -> bool:
        """Whether a pair's token is one ahead of its feature."""
        return self.head.config.inputs.is_shifted

    def features(self, hidden: HiddenStates) -> Tensor | None:
        """What the head reads of the target, in the head's dtype: [tokens, ...]; None for a head that reads tokens only."""
        if not self.head.config.inputs.has_feature:
            return None
        wanted = hidden.layers if self.head.config.layers else hidden.last
        if wanted is None:
            raise TargetMismatch(f"the target gave no {'layer inputs' if self.head.config.layers else 'last hidden state'}")
        return wanted.to(self.device, self.dtype)

    def cache(self, rows: int) -> KvCache:
        """An empty cache of the head's one layer."""
        config = self.head.config
        shape = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim, self.dtype, self.device)
        return KvCache([shape], rows)


class HeadSession(DraftSession):
    """The cache holds pairs of committed tokens with the target's own features, and no others survive a step.

    Pairs wait until the next question, so that they share a forward with the root's: the last of them. Where many wait, all but
    that one are fed without a question.
    """

    def __init__(self, drafting: DraftingHead, starts: Sequence[DraftStart], *, chunk: int = CHUNK) -> None:
        self._drafting = drafting
        self._chunk = chunk
        self.rows = [SequenceDraft(start.prompt[-1], shifted=drafting.shifted) for start in starts]
        self.cache = self._prefilled(starts)

    @torch.inference_mode()
    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """A forward over the pending pairs if there are any, and one for each level of nodes that it has not fed yet."""
        if any(frontiers) and any(row.tokens for row in self.rows):
            self._feed_pending()
        while any(waves := [row.missing(frontier) for row, frontier in zip(self.rows, frontiers, strict=True)]):
            self._feed_nodes(frontiers, waves)
        pairs = zip(self.rows, frontiers, strict=True)
        ids, name = self._drafting.target_ids, self._drafting.name
        return [None if f is None else Distributions(row.logits(f.nodes), ids, made_by=name) for row, f in pairs]

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Pend the committed tokens with their true features; what was drafted is forgotten."""
        for row, news in zip(self.rows, committed, strict=True):
            row.learn(news.tokens, self._drafting.features(news.hidden))
        if any(len(row.tokens) > MOST_PENDING for row in self.rows):
            self._catch_up()

    @torch.inference_mode()
    def _catch_up(self) -> None:
        """Every row's pending pairs but the last go into its stable cache."""
        older = [row.take_older() for row in self.rows]
        counts = [len(tokens) for tokens, _ in older]
        chains = [
            RowNodes(length, range(-1, count - 1), range(count))
            for length, count in zip(self.cache.lengths, counts, strict=True)
        ]
        self.cache.stage(self.cache.lengths, max(counts))
        projected = self._input_projection([features for _, features in older], counts)
        self._forward_nodes(chains, [tokens for tokens, _ in older], projected)
        self.cache.commit([range(count) for count in counts])

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self.rows = [self.rows[row] for row in rows]
        self.cache.keep(rows)

    def join(self, other: Self) -> None:
        """Append the other's rows."""
        self.rows += other.rows
        self.cache.join(other.cache)

    @torch.inference_mode()
    def _prefilled(self, starts: Sequence[DraftStart]) -> KvCache:
        """The prompts' pairs, cached once for samples that share a prompt; the last pair of each waits with its root."""
        firsts = [n for n, start in enumerate(starts) if n == 0 or not same_prompt(starts[n - 1], start)]
        copies = [end - n for n, end in zip(firsts, [*firsts[1:], len(starts)], strict=True)]
        chosen = [starts[n] for n in firsts]
        features = [self._drafting.features(start.hidden) for start in chosen]
        cache = self._drafting.cache(len(chosen))
        self._feed_prompts(cache, [_pairs(start, shifted=self._drafting.shifted)[:-1] for start in chosen], features)
        per_row = [f for f, count in zip(features, copies, strict=True) for _ in range(count)]
        for row, start, own in zip(self.rows, starts, per_row, strict=True):
            row.learn([start.first_token], None if own is None else own[-1:])
        return cache if len(chosen) == len(starts) else cache.fork(copies)

    def _feed_prompts(self, cache: KvCache, prompts: list[tuple[int, ...]], features: list[Tensor | None]) -> None:
        for batch in prompt_batches(list(map(len, prompts)), self._chunk, self._drafting.device.type):
            rows = slice(batch.start, batch.stop)
            for begin in range(0, max(map(len, prompts[rows])), self._chunk):
                self._feed_chunk(cache, batch.start, prompts[rows], features[rows], begin)
        cache.lengths = [len(prompt) for prompt in prompts]

    def _feed_chunk(
        self, cache: KvCache, first_row: int, prompts: list[tuple[int, ...]], features: list[Tensor | None], begin: int
    ) -> None:
        """A chunk, from pair `begin` on, of the rows from first_row on."""
        parts = [prompt[begin : begin + self._chunk] for prompt in prompts]
        starts = [min(begin, len(prompt)) for prompt in prompts]
        counts = [len(part) for part in parts]
        width = max(counts)
        cache.stage(starts, width, first_row)
        mask = chain_mask(starts, counts, nodes=width, slots=cache.staged_width)
        positions = torch.tensor(starts)[:, None] + torch.arange(width)
        cuts = [None if f is None else f[begin : begin + len(part)] for f, part in zip(features, parts, strict=True)]
        self._forward(cache, parts, self._input_projection(cuts, counts), positions, mask)

    def _feed_pending(self) -> None:
        """Every row's pending pairs go into its stable cache; what comes out at the last answers for the root."""
        lengths = self.cache.lengths
        chains = [row.pending(length) for row, length in zip(self.rows, lengths, strict=True)]
        counts = [chain.count for chain in chains]
        features = [torch.cat(row.features) if row.features else None for row in self.rows]
        self.cache.stage(lengths, max(counts))
        states = self._forward_nodes(chains, [row.tokens for row in self.rows], self._input_projection(features, counts))
        last = torch.cat([states[row, count - 1 : count] for row, count in enumerate(counts)])
        logits = self._logits(last)
        self.cache.commit([range(count) for count in counts])
        for row, state, some in zip(self.rows, torch.split(last, 1), torch.split(logits, 1), strict=True):
            row.begin(state, some)

    def _feed_nodes(self, frontiers: Sequence[Frontier | None], waves: list[list[int]]) -> None:
        """One level of drafted nodes behind the stable cache."""
        fed = [
            row.add(frontier.tree, wave) if frontier is not None and wave else ([], None)
            for row, frontier, wave in zip(self.rows, frontiers, waves, strict=True)
        ]
        counts = [len(wave) for wave in waves]
        nodes = [r.drafted(n, count) for r, n, count in zip(self.rows, self.cache.lengths, counts, strict=True)]
        self.cache.stage([node.length + node.first for node in nodes], max(counts))
        hidden = self._padded([parents for _, parents in fed], counts, (self._drafting.head.config.hidden_size,))
        states = self._forward_nodes(nodes, [tokens for tokens, _ in fed], hidden)
        real = states[0] if len(counts) == 1 else torch.cat([states[row, :count] for row, count in enumerate(counts)])
        logits = self._logits(real)
        for row, own, some in zip(self.rows, torch.split(real, counts), torch.split(logits, counts), strict=True):
            if len(own):
                row.answer(own, some)

    def _forward_nodes(self, rows: list[RowNodes], tokens: Sequence[Sequence[int]], hidden: Tensor) -> Tensor:
        """[rows, nodes, hidden] after the nodes that have just been staged."""
        width = hidden.shape[1]
        mask = tree_mask(rows, nodes=width, slots=self.cache.staged_width)
        return self._forward(self.cache, tokens, hidden, torch.tensor(tree_positions(rows, width)), mask)

    def _forward(
        self, cache: KvCache, tokens: Sequence[Sequence[int]], hidden: Tensor, positions: Tensor, mask: Tensor
    ) -> Tensor:
        drafting, width = self._drafting, hidden.shape[1]
        if drafting.head.config.inputs.has_token:
            ids = [token for row in tokens for token in (*row, *[0] * (width - len(row)))]
            embedded = drafting.embed(torch.tensor(ids, device=drafting.device)).view(len(tokens), width, -1)
        else:
            embedded = hidden
        return drafting.head(
            embedded,
            hidden,
            positions.to(drafting.device),
            mask=additive(mask, drafting.dtype, drafting.device),
            update=partial(cache.update, 0),
        )

    def _input_projection(self, features: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor:
        """The target's features as the head's first step takes them, padded: [rows, nodes, hidden]."""
        config = self._drafting.head.config
        width = config.hidden_size if config.target_hidden_size is None else config.target_hidden_size
        tail = (len(config.layers), width) if config.layers else (width,)
        return self._drafting.head.input_projection(self._padded(features, counts, tail))

    def _padded(self, parts: Sequence[Tensor | None], counts: Sequence[int], tail: tuple[int, ...]) -> Tensor:
        """[rows, max(counts), *tail]; zeros where a row has no part, or a shorter one."""
        if len(parts) == 1 and parts[0] is not None:
            return parts[0][None]
        full = torch.zeros((len(parts), max(counts), *tail), dtype=self._drafting.dtype, device=self._drafting.device)
        for row, (part, count) in enumerate(zip(parts, counts, strict=True)):
            if part is not None:
                full[row, :count] = part
        return full

    def _logits(self, states: Tensor) -> Tensor:
        return self._drafting.lm_head(self._drafting.head.lm_head_states(states))


def _pairs(start: DraftStart, *, shifted: bool) -> tuple[int, ...]:
    """The tokens that go with the prompt's features."""
    return (*start.prompt[1:], start.first_token) if shifted else start.prompt
