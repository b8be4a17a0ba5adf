"""Drafting with Medusa heads: rows of logits by depth, computed at the first question of a step and shared by all parents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from specdec.errors import CheckpointError, TargetMismatch
from specdec.heads.loading import LoadedHead, name_of
from specdec.heads.medusa import MedusaHead
from specdec.heads.shared_weights import LmHead, lm_heads_by_depth
from specdec.interfaces.parts import DraftSession
from specdec.interfaces.proposals import Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored


@dataclass(frozen=True, slots=True, eq=False)
class DraftingMedusa:
    """Medusa heads that are ready to draft.

    lm_heads: one for each head, or a single one that all share. target_ids: [drafts] of their columns; None: all of the
    target's. name: for messages.
    """

    head: MedusaHead
    lm_heads: tuple[LmHead, ...]
    target_ids: Tensor | None
    dtype: torch.dtype
    device: torch.device
    name: str

    @torch.inference_mode()
    def rows(self, features: Tensor) -> Tensor:
        """[sequences, depths, drafts] logits after features [sequences, hidden]; row d is of the children of depth d."""
        states = self.head(features)
        if len(self.lm_heads) == 1:
            logits = self.lm_heads[0](states.flatten(0, 1)).view(*states.shape[:2], -1)
        else:
            logits = torch.stack([lm_head(some) for lm_head, some in zip(self.lm_heads, states, strict=True)])
        return logits.transpose(0, 1)

    def last_feature(self, hidden: HiddenStates) -> Tensor:
        """[1, hidden] of the node at which the last token was drawn; a copy, so that the others are not kept in memory."""
        if hidden.last is None:
            raise TargetMismatch("the target gave no last hidden state")
        return hidden.last[-1:].to(self.device, self.dtype, copy=True)


def ready_medusa(loaded: LoadedHead) -> DraftingMedusa:
    """Medusa heads as drafting runs them, with the LM head that they borrow."""
    checkpoint, head = loaded.checkpoint, loaded.checkpoint.head
    if not isinstance(head, MedusaHead):
        raise CheckpointError(f"the head is of kind '{checkpoint.config.kind}'; drafter '{checkpoint.config.kind}' would work")
    lm_heads = lm_heads_by_depth(checkpoint, loaded.target, loaded.device, head.own_lm_heads)
    return DraftingMedusa(head, lm_heads, checkpoint.draft_ids, loaded.dtype, loaded.device, name_of(loaded.folder))


class MedusaSession(DraftSession):
    """Of each sequence, the feature at which its last token was drawn, and the rows that follow from it once they were asked.

    The first head predicts the token after the last one: the children of the root. What is deeper than the heads reach is
    answered by the last of them; decoders do not ask for it.
    """

    def __init__(self, drafting: DraftingMedusa, starts: Sequence[DraftStart]) -> None:
        self._drafting = drafting
        self._features = [drafting.last_feature(start.hidden) for start in starts]
        self._rows: list[Tensor | None] = [None] * len(starts)

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """One pass for all sequences that ask for the first time since their last commit."""
        fresh = [n for n, f in enumerate(frontiers) if f is not None and self._rows[n] is None]
        if fresh:
            logits = self._drafting.rows(torch.cat([self._features[n] for n in fresh]))
            for n, own in zip(fresh, logits, strict=True):
                self._rows[n] = own
        return [self._answer(rows, frontier) for rows, frontier in zip(self._rows, frontiers, strict=True)]

    def _answer(self, rows: Tensor | None, frontier: Frontier | None) -> Proposal | None:
        if rows is None or frontier is None:
            return None
        depths = [min(frontier.tree.depths[node], len(rows) - 1) for node in frontier.nodes]
        same = len(set(depths)) == 1
        logits = rows[depths[0]].expand(len(depths), -1) if same else rows[depths]
        return Distributions(logits, self._drafting.target_ids, made_by=self._drafting.name)

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Keep the feature at which the new root was drawn; the rows are forgotten."""
        self._features = [self._drafting.last_feature(news.hidden) for news in committed]
        self._rows = [None] * len(committed)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self._features = [self._features[row] for row in rows]
        self._rows = [self._rows[row] for row in rows]

    def join(self, other: Self) -> None:
        """Append the other's rows."""
        self._features += other._features
        self._rows += other._rows
