"""The training loop: batches, optimiser, validation, checkpoints, log."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.errors import NumericsError
from specdec.files.atomic import whole_file
from specdec.files.paths import is_file
from specdec.heads.architectures import TrainedHead
from specdec.training.block_rows import draw_anchors
from specdec.training.borrowed import Borrowed, rows_of_ids, save_head
from specdec.training.dataset import Batch, FeatureSet
from specdec.training.distributed import Processes
from specdec.training.optimizer import learning_rate_share, optimizers
from specdec.training.spec import TrainingSpec
from specdec.training.step import ALONE, batch_loss, draw_noise
from specdec.training.unroll import num_steps
from specdec.training.validation import ChainAcceptance, chain_acceptance

LOG_EVERY = 20
BAD_STEPS_ALLOWED = 20
LEAST_PROGRESS = 1e-4
"""So that the first step is not made at a learning rate of 0."""


class Trainer:
    """A run that can stop at any step and resume as if it had not.

    Its whole state is in the checkpoint: weights, optimisers, epoch and place in it, the shards of the epoch, and counters.
    shards: those of an epoch; where they are others than before, they are put down before they are learnt from.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        head: TrainedHead,
        borrowed: Borrowed,
        shards: Callable[[int], list[Path]],
        held_out: FeatureSet,
        report: Callable[[dict[str, Any]], None],
        processes: Processes = ALONE,
    ) -> None:
        self.spec, self.head, self.borrowed, self.held_out = spec, head, borrowed, held_out
        self.processes = processes
        self.report = report if processes.is_first else _nothing
        self.optimizers = optimizers(head, spec.optimizer)
        self._shards = shards
        self.on_step: Callable[[], None] = _no_one_watches
        self.step = self.epoch = self.place = self.tokens = self.skipped = 0
        self.seconds = 0.0
        self.best_tau = 0.0
        self.validated_step: int | None = None
        self.epoch_shards: list[Path] = []
        self._last_shards: list[Path] = []
        self.row_of_id = rows_of_ids(borrowed)

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        budget = self.spec.budget
        if budget.steps is not None:
            return self.step / budget.steps
        return self.seconds / (budget.seconds or 1.0)

    @property
    def spent(self) -> str:
        """How much of the budget that is, in words."""
        budget = self.spec.budget
        if budget.steps is not None:
            return f"the run has made {self.step} steps, of budget.steps: {budget.steps}"
        return f"the run has trained for {self.seconds:.0f} seconds, of budget.seconds: {budget.seconds:g}"

    def run(self, stop_after: int | None = None) -> None:
        """Train to the end of the budget, or for `stop_after` more steps."""
        last = None if stop_after is None else self.step + stop_after
        if self.spec.start_from is not None and not self.step:
            self._validate()
        while self.progress < 1.0:
            if not self.epoch_shards:
                self._begin_epoch()
            data = FeatureSet(self.epoch_shards, layers=bool(self.head.config.layers))
            order = torch.Generator().manual_seed(self.spec.seed * 1_000_003 + self.epoch)
            batches = data.batches(self.spec.tokens_per_batch, order)
            while self.place < len(batches) and self.progress < 1.0:
                if last is not None and self.step >= last:
                    return
                mine = batches[self.place + self.processes.rank :][:1]
                self._one(data.load(mine[0]) if mine else data.load(batches[0]).silent())
            if self.place >= len(batches):
                self.epoch, self.place, self.epoch_shards = self.epoch + 1, 0, []
        self._validate()
        self.save()

    def _begin_epoch(self) -> None:
        self.epoch_shards = self._shards(self.epoch)
        if self.epoch_shards != self._last_shards:
            self.save()
        self._last_shards = self.epoch_shards

    def _one(self, stored: Batch) -> None:
        started = time.monotonic()
        batch = stored.to(self.borrowed.embedding.device, self.borrowed.embedding.dtype)
        options, progress = self.spec.optimizer, self.progress
        share = learning_rate_share(max(progress, LEAST_PROGRESS), options.warmup, options.final_share)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * share
        steps = num_steps(self.head, self.spec.steps, progress)
        generator = torch.Generator().manual_seed(self.spec.seed * 7_368_787 + self.step * 1009 + self.processes.rank)
        with torch.autocast(batch.inputs.device.type, dtype=torch.bfloat16, enabled=self.spec.autocast):
            loss = batch_loss(
                self.head,
                self.borrowed,
                self.row_of_id,
                batch,
                losses=self.spec.loss_weights,
                steps=steps,
                noise=draw_noise(self.spec.noise, batch, generator),
                begun=draw_anchors(self.head, batch.judged[:, 1:], self.spec.anchors_per_conversation, generator),
                processes=self.processes,
            )
        norm = None if loss is None else self._update(loss.total)
        tokens = self.processes.total(batch.tokens, batch.token_ids.device)
        self.step, self.place, self.tokens = self.step + 1, self.place + self.processes.count, self.tokens + tokens
        took = self.processes.mean(time.monotonic() - started, batch.token_ids.device)
        self.seconds += took
        self.on_step()
        if loss is not None and norm is not None and self.step % LOG_EVERY == 0:
            self.report({
                "step": self.step, "epoch": self.epoch, "tokens": self.tokens, "seconds": round(self.seconds, 1),
                "loss": float(loss.total.detach()), "regression": loss.regression, "cross_entropy": loss.cross_entropy,
                "accuracy": loss.accuracy, "norm": norm, "share": share, "tokens_per_second": tokens / took,
                "unroll": steps, "skipped": self.skipped,
            })  # fmt: skip
        if self.step % self.spec.validate_every == 0:
            self._validate()
        if self.step % self.spec.checkpoint_every == 0:
            self.save()

    def _update(self, total: Tensor) -> float | None:
        """One optimiser step; the gradient's norm, or None where a NaN made it be skipped."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        self.processes.sum_gradients(self.head.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.spec.optimizer.clip_norm)
        if not bool(torch.isfinite(norm)):
            self.skipped += 1
            if self.skipped > BAD_STEPS_ALLOWED:
                raise NumericsError(
                    f"step {self.step}: {self.skipped} losses or gradients were not finite; a lower learning rate would work"
                )
            return None
        for optimizer in self.optimizers:
            optimizer.step()
        return float(norm)

    def _validate(self) -> None:
        if not self.processes.is_first or self.validated_step == self.step:
            return
        started = time.monotonic()
        acceptance, self.validated_step = self.acceptance(), self.step
        self.report({
            "step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1), "tau": acceptance.tau,
            "alpha": [round(a, 4) for a in acceptance.alpha], "positions": acceptance.positions,
            "validation_seconds": round(time.monotonic() - started, 1),
        })  # fmt: skip
        if acceptance.tau > self.best_tau:
            self.best_tau = acceptance.tau
            save_head(self.spec.output / "head", self.head, self.borrowed)
            (self.spec.output / "head" / "validation.json").write_text(json.dumps(
                {"tau": acceptance.tau, "alpha": acceptance.alpha, "step": self.step, "tokens": self.tokens}))  # fmt: skip

    def acceptance(self) -> ChainAcceptance:
        """Chain acceptance on the held-out conversations."""
        device, dtype = self.borrowed.embedding.device, self.borrowed.embedding.dtype
        batches = (self.held_out.load(places).to(device, dtype) for places in self.held_out.batches(4096, None))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.spec.autocast):
            return chain_acceptance(self.head, self.borrowed, batches)

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        if not self.processes.is_first:
            return
        path = self.spec.output / "checkpoint.pt"
        state = {
            "head": self.head.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers],
            "counters": {name: getattr(self, name) for name in (*COUNTERS, "validated_step")},
            "epoch_shards": [str(path) for path in self.epoch_shards], "draft_ids": self.borrowed.draft_ids,
            "config": self.head.config.model_dump(mode="json"), "spec": self.spec.model_dump(mode="json"),
        }  # fmt: skip
        with whole_file(path) as scratch, scratch.open("wb") as file:
            torch.save(state, file)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's contents; shards whose folder has moved are found in the spec's."""
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            peaks = [group["peak"] for group in optimizer.param_groups]
            optimizer.load_state_dict(saved)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak
        for name in COUNTERS:
            setattr(self, name, state["counters"][name])
        self.validated_step = state["counters"].get("validated_step")
        paths = [Path(path) for path in state["epoch_shards"]]
        self.epoch_shards = [path if is_file(path) else self.spec.features / path.name for path in paths]
        self._last_shards = self.epoch_shards


def _no_one_watches() -> None:
    """The default of `Trainer.on_step`."""


def _nothing(record: dict[str, Any]) -> None:
    """What processes other than the first report."""


COUNTERS = ("step", "epoch", "place", "tokens", "skipped", "seconds", "best_tau")
