"""Drafting with Hydra heads: a row of logits for each node, from the state before the root and the tokens down to the node."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from specdec.errors import CheckpointError, TargetMismatch
from specdec.heads.hydra import HydraHead
from specdec.heads.loading import LoadedHead, name_of
from specdec.heads.prefix_cache import PrefixCache
from specdec.heads.sequence import same_prompt
from specdec.heads.session import MOST_PENDING
from specdec.heads.shared_weights import Embed, LmHead, embeddings, lm_heads_by_depth
from specdec.interfaces.parts import DraftSession
from specdec.interfaces.proposals import Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored


@dataclass(frozen=True, slots=True, eq=False)
class DraftingHydra:
    """Hydra heads that are ready to draft; attributes as of `DraftingMedusa`, and `embed` for the tokens that they read."""

    head: HydraHead
    embed: Embed
    lm_heads: tuple[LmHead, ...]
    target_ids: Tensor | None
    dtype: torch.dtype
    device: torch.device
    name: str

    @torch.inference_mode()
    def rows(self, depth: int, states: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
        """[nodes, drafts] logits for the children of nodes of one depth.

        states: [nodes, hidden] before their roots. tokens: by node, the root and the tokens down to the node.
        """
        flat = torch.tensor([token for path in tokens for token in path], device=self.device)
        embedded = self.embed(flat).view(len(tokens), depth + 1, -1)
        return self.lm_heads[min(depth, len(self.lm_heads) - 1)](self.head(depth, states, embedded))

    def features(self, hidden: HiddenStates) -> Tensor:
        """[tokens, hidden] of the target, in the head's dtype."""
        if hidden.last is None:
            raise TargetMismatch("the target gave no last hidden state")
        return hidden.last.to(self.device, self.dtype)


def ready_hydra(loaded: LoadedHead) -> DraftingHydra:
    """Hydra heads as drafting runs them, with the embeddings and the LM head that they borrow."""
    checkpoint, head = loaded.checkpoint, loaded.checkpoint.head
    if not isinstance(head, HydraHead):
        raise CheckpointError(f"the head is of kind '{checkpoint.config.kind}'; drafter '{checkpoint.config.kind}' would work")
    embed = embeddings(checkpoint, loaded.target, loaded.dtype, loaded.device)
    lm_heads = lm_heads_by_depth(checkpoint, loaded.target, loaded.device, head.own_lm_heads)
    return DraftingHydra(head, embed, lm_heads, checkpoint.draft_ids, loaded.dtype, loaded.device, name_of(loaded.folder))


class HydraSession(DraftSession):
    """Of each sequence, the state at which its last token was drawn: the target's feature, or the prefix layer's output.

    Features of committed tokens wait for the next question, so that the prefix layer reads them in one pass. What is deeper
    than the heads reach is answered by the last of them; decoders do not ask for it.
    """

    def __init__(self, drafting: DraftingHydra, starts: Sequence[DraftStart]) -> None:
        self._drafting = drafting
        layer = drafting.head.config.prefix
        firsts = [n for n, start in enumerate(starts) if n == 0 or not same_prompt(starts[n - 1], start)]
        copies = [end - n for n, end in zip(firsts, [*firsts[1:], len(starts)], strict=True)]
        self._prefix = None if layer is None else PrefixCache(drafting.head, layer, len(firsts))
        states = self._read([drafting.features(starts[n].hidden) for n in firsts])
        self._states = [state for state, count in zip(states, copies, strict=True) for _ in range(count)]
        if self._prefix is not None:
            self._prefix.fork(copies)
        self._pending: list[list[Tensor]] = [[] for _ in starts]

    def _read(self, features: Sequence[Tensor]) -> list[Tensor]:
        """The states [1, hidden] at the last of each sequence's new features."""
        if not features:
            return []
        return [new[-1:].clone() for new in features] if self._prefix is None else self._prefix.feed(features)

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """One pass for all nodes of a depth, of all sequences."""
        if any(frontiers):
            self._catch_up()
        deepest = self._drafting.head.config.num_heads - 1
        by_depth: dict[int, list[tuple[int, int]]] = {}
        for row, frontier in enumerate(frontiers):
            depths = [] if frontier is None else [frontier.tree.depths[node] for node in frontier.nodes]
            for place, depth in enumerate(depths):
                by_depth.setdefault(min(depth, deepest), []).append((row, place))
        answers: list[list[Tensor]] = [[torch.empty(0)] * len(f.nodes) if f is not None else [] for f in frontiers]
        for depth, asked in by_depth.items():
            states = torch.cat([self._states[row] for row, _ in asked])
            logits = self._drafting.rows(depth, states, [_tokens(frontiers[row], place, depth) for row, place in asked])
            for (row, place), own in zip(asked, logits, strict=True):
                answers[row][place] = own
        ids, name = self._drafting.target_ids, self._drafting.name
        return [Distributions(torch.stack(rows), ids, made_by=name) if rows else None for rows in answers]

    def _catch_up(self) -> None:
        if any(self._pending):
            self._states = self._read([torch.cat(new) for new in self._pending])
            self._pending = [[] for _ in self._pending]

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Pend the features at which the committed tokens were drawn."""
        for pending, news in zip(self._pending, committed, strict=True):
            pending.append(self._drafting.features(news.hidden))
        if any(sum(map(len, pending)) > MOST_PENDING for pending in self._pending):
            self._catch_up()

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self._states = [self._states[row] for row in rows]
        self._pending = [self._pending[row] for row in rows]
        if self._prefix is not None:
            self._prefix.keep(rows)

    def join(self, other: Self) -> None:
        """Append the other's rows."""
        self._catch_up()
        other._catch_up()
        self._states += other._states
        self._pending += other._pending
        if self._prefix is not None and other._prefix is not None:
            self._prefix.join(other._prefix)


def _tokens(frontier: Frontier | None, place: int, depth: int) -> list[int]:
    """The root and the tokens down to a frontier's node, as many as the head of this depth reads."""
    if frontier is None:
        raise AssertionError("a sequence without a frontier was asked about")
    return [frontier.tree.tokens[0], *frontier.tree.path(frontier.nodes[place])][: depth + 1]
