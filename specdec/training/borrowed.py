"""What a head borrows from its target, and the head on disk without it: config.json, and model.safetensors in bfloat16."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec.files.atomic import whole_file, write_whole
from specdec.heads.architectures import TrainedHead
from specdec.heads.block import BlockHead
from specdec.heads.hydra import HydraHead
from specdec.heads.medusa import MedusaHead


@dataclass(frozen=True, slots=True, eq=False)
class Borrowed:
    """What a head borrows: embeddings [vocab, hidden], LM-head rows [drafts, hidden], the ids of those rows (None: all)."""

    embedding: Tensor
    lm_head: Tensor
    draft_ids: Tensor | None


def rows_of_ids(borrowed: Borrowed) -> Tensor:
    """[vocab] the LM head's row for each of the target's ids, -1 for those that cannot be drafted."""
    device = borrowed.lm_head.device
    rows = torch.arange(borrowed.embedding.shape[0], device=device)
    if borrowed.draft_ids is not None:
        ids = borrowed.draft_ids.to(device)
        rows = torch.full_like(rows, -1)
        rows[ids] = torch.arange(len(ids), device=device)
    return rows


def logit_factors(head: TrainedHead, borrowed: Borrowed, step: int, states: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """States [rows, width] and a matrix [drafts, width] whose products are the logits of step `step` of a draft.

    states: [rows, hidden] as `drafted` gives them. before: [rows] the token that each follows, for a bias by it.
    """
    read, rows = head.lm_head_states(states), lm_head_rows(head, borrowed, step)
    if not isinstance(head, BlockHead) or head.markov_head is None:
        return read, rows
    markov = head.markov_head
    by_token = markov.markov_w1(before).to(read.dtype)
    return torch.cat((read, by_token), 1), torch.cat((rows.to(read.dtype), markov.markov_w2.weight.to(read.dtype)), 1)


def lm_head_rows(head: TrainedHead, borrowed: Borrowed, step: int) -> Tensor:
    """[drafts, hidden] what step `step` of a draft is read by: the head's own LM head, or the borrowed rows."""
    if isinstance(head, BlockHead):
        return borrowed.lm_head
    if isinstance(head, MedusaHead | HydraHead):
        return head.own_lm_heads[step].weight if head.own_lm_heads else borrowed.lm_head
    return borrowed.lm_head if head.lm_head is None else head.lm_head.weight


def save_head(folder: Path, head: TrainedHead, borrowed: Borrowed) -> None:
    """Weights by their published names, `draft_ids` [drafts] int64 where the vocabulary is reduced; embeddings are left out.

    Each file is whole whenever it is there, and the weights come last.
    """
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in head.state_dict().items()}
    if borrowed.draft_ids is not None:
        tensors["draft_ids"] = borrowed.draft_ids.to(torch.int64)
    with whole_file(folder / "model.safetensors") as weights:
        save_file(tensors, weights, metadata={"format": "pt"})
        write_whole(folder / "config.json", head.config.model_dump_json(indent=2))
