"""A run that distils a draft model: its loop, its checkpoint, and from a spec to both."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specdec.errors import CheckpointError, NumericsError, SpecError, TargetMismatch
from specdec.files.atomic import whole_file, write_whole
from specdec.files.locks import exclusive
from specdec.files.paths import exists, expanded, is_file
from specdec.targets.loading import load_model
from specdec.targets.model_call import ModelCall
from specdec.targets.quiet import quiet
from specdec.training.conversations import Conversation, encode, is_held_out, read_messages, shuffled
from specdec.training.draft_model import Acceptance, acceptance, distillation_loss, sampled, texts_of
from specdec.training.draft_model_spec import DraftModelSpec
from specdec.training.loss_mask import LossMask
from specdec.training.optimizer import learning_rate_share
from specdec.training.run import log_to, no_folder, open_target

FREE = {"steps", "validate_every", "checkpoint_every", "output", "name"}
"""What a spec may say otherwise when a run goes on."""

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Both models, the ids that end an answer, and what writes the draft model into a folder."""

    draft: Any
    target: Any
    stops: frozenset[int]
    write: Callable[[Path], None]


class Distillation:
    """Goes on from a checkpoint as if it had never stopped: in float32 on a CPU with the same weights."""

    def __init__(
        self, spec: DraftModelSpec, pair: Pair, learnt: Sequence[Conversation], held_out: Sequence[Conversation], report: Report
    ) -> None:
        self.spec, self.pair, self.learnt, self.report = spec, pair, learnt, report
        self.device = next(pair.draft.parameters()).device
        self.held_out = [texts_of([one], self.device) for one in held_out]
        self.optimizer = torch.optim.AdamW(pair.draft.parameters(), lr=spec.learning_rate, weight_decay=spec.weight_decay)
        self.step, self.best = 0, -1.0

    def run(self, stop_after: int | None = None) -> None:
        """To the last step of the spec, or for `stop_after` more."""
        last = self.spec.steps if stop_after is None else min(self.spec.steps, self.step + stop_after)
        if not self.step:
            self.validate()
        while self.step < last:
            loss = self._one()
            self.step += 1
            if self.step % self.spec.validate_every == 0 or self.step == self.spec.steps:
                self.report({"step": self.step, "loss": loss})
                self.validate()
            if self.step % self.spec.checkpoint_every == 0 or self.step == self.spec.steps:
                self.save()

    def _one(self) -> float:
        spec, draws = self.spec, torch.Generator().manual_seed(self.spec.seed * 7_368_787 + self.step)
        batch = [self._conversation(self.step * spec.conversations_per_step + n) for n in range(spec.conversations_per_step)]
        own = torch.empty(len(batch)).uniform_(generator=draws) < spec.own_samples
        asked = [one for one, chosen in zip(batch, own.tolist(), strict=True) if chosen]
        texts = [one for one, chosen in zip(batch, own.tolist(), strict=True) if not chosen]
        if asked:
            texts += sampled(self.pair.draft, asked, spec.max_new_tokens, spec.temperature, self.pair.stops, draws)
        share = learning_rate_share((self.step + 1) / spec.steps, spec.warmup, spec.final_share)
        for group in self.optimizer.param_groups:
            group["lr"] = spec.learning_rate * share
        self.optimizer.zero_grad(set_to_none=True)
        surrogate, loss = distillation_loss(self.pair.draft, self.pair.target, texts_of(texts, self.device), spec.row_loss)
        surrogate.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.pair.draft.parameters(), spec.clip_norm)
        if not bool(torch.isfinite(norm)):
            raise NumericsError(f"step {self.step}: the gradient is not finite; a lower learning_rate would work")
        self.optimizer.step()
        return loss

    def _conversation(self, number: int) -> Conversation:
        epoch, place = divmod(number, len(self.learnt))
        order = torch.empty(len(self.learnt)).uniform_(generator=torch.Generator().manual_seed(self.spec.seed + epoch))
        return self.learnt[int(order.argsort()[place])]

    def validate(self) -> Acceptance:
        """Acceptance on the held-out answers; the best model so far is written."""
        found = acceptance(self.pair.draft, self.pair.target, self.held_out)
        record = {"step": self.step, "alpha": found.alpha, "tau": found.tau, "positions": found.positions}
        self.report(record)
        if found.alpha > self.best:
            self.best = found.alpha
            self.pair.write(self.spec.output / "model")
            write_whole(self.spec.output / "validation.json", json.dumps(record) + "\n")
        return found

    def save(self) -> None:
        """The checkpoint; the old one stays until the new one is whole."""
        state = {
            "draft": self.pair.draft.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
            "best": self.best, "spec": self.spec.model_dump(mode="json"),
        }  # fmt: skip
        with whole_file(self.spec.output / "checkpoint.pt") as scratch, scratch.open("wb") as file:
            torch.save(state, file)

    def restore(self) -> None:
        """Go on where the checkpoint in the output folder says, if there is one. Raises CheckpointError, SpecError."""
        path = self.spec.output / "checkpoint.pt"
        if not is_file(path):
            return
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            before, now = state["spec"], self.spec.model_dump(mode="json")
            changed = [
                f"{key} was {before.get(key)}, is {now[key]}" for key in now.keys() - FREE if before.get(key) != now[key]
            ]
            if not changed:
                self.pair.draft.load_state_dict(state["draft"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.step, self.best = state["step"], state["best"]
        except Exception as error:  # torch's reader raises whatever bytes that are not its own lead to
            raise CheckpointError(f"{path} is no checkpoint of this run: {error}; delete it to start anew") from error
        if changed:
            raise SpecError(f"{path} is of another run: {'; '.join(changed)}; another output folder would work")


def distil_draft_model(spec: DraftModelSpec, report: Report) -> Distillation:
    """Train to the end of the spec.

    Raises SpecError for data that cannot be learnt from, and TargetMismatch for a draft model of another vocabulary.
    """
    if (other := no_folder(spec.output)) is not None:
        raise SpecError(f"output: {other} is a file, and a folder is to be there; give another name")
    with exclusive(spec.output, folder=True):
        call, tokenizer = open_target(spec.target)
        draft = ModelCall(
            load_model(str(expanded(spec.head.model)), dtype="float32", device=str(call.device), attention="sdpa")
        )
        if draft.vocab_size != call.vocab_size:
            raise TargetMismatch(
                f"head.model: it gives logits of {draft.vocab_size} tokens, and the target of {call.vocab_size}"
            )
        if spec.own_samples and not draft.takes_positions:
            raise SpecError("own_samples: the draft model takes no positions, so that it cannot be sampled from; 0 would work")
        parts = _conversations(spec, LossMask(tokenizer))
        log = log_to(spec.output / "log.jsonl")

        def both(record: dict[str, Any]) -> None:
            log(record)
            report(record)

        draft.model.requires_grad_(True)
        pair = Pair(draft.model, call.model, _ends(draft.model), partial(_write, draft.model, tokenizer))
        run = Distillation(spec, pair, *parts, both)
        run.restore()
        run.run()
        return run


def _ends(model: Any) -> frozenset[int]:
    """The ids that end an answer."""
    ids = getattr(getattr(model, "generation_config", model.config), "eos_token_id", None)
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


def _write(model: Any, tokenizer: Any, folder: Path) -> None:
    """The model and its tokenizer, whole whenever the folder is there."""
    scratch = folder.with_name(f"{folder.name}.new")
    with quiet():
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    if exists(folder):
        shutil.rmtree(folder)
    scratch.rename(folder)


def _conversations(spec: DraftModelSpec, mask: LossMask) -> tuple[list[Conversation], list[Conversation]]:
    """To learn from, and held out; those without a word of the assistant are left out."""
    every = [encode(messages, mask, spec.data.max_tokens) for messages in read_messages(spec.data.path)]
    told = shuffled((one for one in every if any(one.spoken)), spec.seed)
    learnt = [one for one in told if not is_held_out(one.key, spec.data.held_out_share)]
    held_out = [one for one in told if is_held_out(one.key, spec.data.held_out_share)]
    if not learnt or not held_out:
        raise SpecError(f"data: of {len(told)} conversations {len(held_out)} are held out; more would work")
    return learnt, held_out
