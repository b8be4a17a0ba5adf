"""One batch's loss: the unroll, its losses and their weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.heads.architectures import TrainedHead
from specdec.training.borrowed import Borrowed, logit_factors
from specdec.training.dataset import Batch
from specdec.training.distributed import Processes
from specdec.training.losses import feature_regression, loss_of_rows, soft_labels
from specdec.training.spec import LossSpec, NoiseSpec
from specdec.training.unroll import drafted

PUBLISHED_LENGTH = 512
ALONE = Processes()


@dataclass(frozen=True, slots=True, eq=False)
class BatchLoss:
    """total: mean over judged rows, to be differentiated. Others are means for the log, of the first step; rows: judged."""

    total: Tensor
    regression: float
    cross_entropy: float
    accuracy: tuple[float, ...]
    rows: int


def batch_loss(
    head: TrainedHead,
    borrowed: Borrowed,
    row_of_id: Tensor,
    batch: Batch,
    *,
    losses: LossSpec,
    steps: int,
    noise: Tensor | None = None,
    begun: Tensor | None = None,
    processes: Processes = ALONE,
) -> BatchLoss | None:
    """Losses of all steps, over rows whose prediction is about a word of the assistant; None where no process has any.

    noise: added to the input features. begun: as in `drafted`, the drafts to learn from. processes: sums are divided by the
    rows of all of them, so that gradients add up.
    """
    judged = batch.judged[:, 1:]
    inputs = batch.inputs[:, :-1] if noise is None else batch.inputs[:, :-1] + noise
    total, regression, cross_entropy, accuracy = inputs.new_zeros((), dtype=torch.float32), 0.0, 0.0, list[float]()
    first_rows = int(_of_draft(judged, begun, 0).sum())
    for step, hidden in enumerate(drafted(head, borrowed.embedding, batch.token_ids, inputs, steps, begun)):
        where = _of_draft(judged, begun, step)
        rows = processes.total(int(where.sum()), judged.device)
        if rows == 0:
            return None if step == 0 else BatchLoss(total, regression, cross_entropy, tuple(accuracy), first_rows)
        states, target = hidden[where], batch.features[:, 1:][where]
        labels = soft_labels(batch.top_ids[:, 1:][where], batch.top_logits[:, 1:][where], row_of_id)
        weight = losses.step_decay**step
        factors = logit_factors(head, borrowed, step, states, batch.token_ids[:, 1:][where])
        entropy, hits = loss_of_rows(losses.row_loss, *factors, labels)
        total = total + weight * losses.cross_entropy * entropy / rows
        if losses.regression:
            distance = feature_regression(states, target)
            total = total + weight * losses.regression * distance / rows
            regression = float(distance.detach()) / max(first_rows, 1) if step == 0 else regression
        cross_entropy = float(entropy.detach()) / max(first_rows, 1) if step == 0 else cross_entropy
        accuracy.append(int(hits) / max(int(where.sum()), 1))
    return BatchLoss(total, regression, cross_entropy, tuple(accuracy), first_rows)


def _of_draft(judged: Tensor, begun: Tensor | None, step: int) -> Tensor:
    """[conversations, rows] which of the judged rows are step `step` of a draft that is learnt from."""
    where = judged.clone()
    where[:, :step] = False
    if begun is not None:
        where[:, step:] &= begun[:, : max(begun.shape[1] - step, 0)]
    return where


def draw_noise(spec: NoiseSpec, batch: Batch, generator: torch.Generator) -> Tensor | None:
    """Uniform noise for the input features, or None.

    *Source: arXiv 2401.15077, appendix A.2; scaled by each conversation's own length as in its code.*
    """
    if not spec.width:
        return None
    shape = batch.inputs[:, :-1].shape
    noise = torch.empty(shape).uniform_(-spec.width / 2, spec.width / 2, generator=generator).to(batch.inputs)
    if not spec.by_length:
        return noise
    scale = PUBLISHED_LENGTH / batch.real.sum(1).clamp_min(1)
    return noise * scale.to(noise).view(-1, *[1] * (noise.dim() - 1))
