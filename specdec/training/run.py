"""From a training spec to a running trainer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specdec.errors import SpecError, TargetMismatch
from specdec.files.atomic import write_whole
from specdec.files.jsonl import append_lines, cut_unfinished_line, parse_json
from specdec.files.locks import exclusive
from specdec.files.paths import exists, expanded, is_file, is_folder
from specdec.heads.architectures import TrainedHead
from specdec.heads.config import TrainedWith
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.interfaces.target_identity import template_hash
from specdec.targets.builtin import builtin_name
from specdec.targets.capability import text_config
from specdec.targets.chat_template import ChatTemplate
from specdec.targets.gguf_cache import unpacked_folder
from specdec.targets.loading import load_model, load_tokenizer
from specdec.targets.model_call import ModelCall
from specdec.training.borrowed import Borrowed
from specdec.training.checkpoint import check_template, head_as_left, read_checkpoint, restored
from specdec.training.dataset import FeatureSet, coverage
from specdec.training.distributed import Processes, processes
from specdec.training.feature_store import FeatureStore
from specdec.training.features import FeaturePlan
from specdec.training.initialization import borrow, check_plan, draft_ids, fresh_head, fused_layers
from specdec.training.judge import JudgeSpec, Validation, labelled, train_judge
from specdec.training.loop import Trainer
from specdec.training.loss_mask import LossMask
from specdec.training.sizes import head_config, head_sizes
from specdec.training.spec import TargetSpec, TrainingSpec
from specdec.training.started_from import continued, head_to_start_from, sized_as_started

LOG = "log.jsonl"

FILES = (LOG, "checkpoint.pt", "config.json")
"""What a run writes into its output folder, beside `head`."""


Report = Callable[[dict[str, Any]], None]


def trainer(spec: TrainingSpec, report: Report) -> Trainer:
    """A fresh trainer, or the one of the spec's output folder as its checkpoint left it; features are computed first.

    What can be known is looked at before features are computed. Raises SpecError, as for a checkpoint of a run that differs in
    what cannot change midway, and CheckpointError for one that is damaged.
    """
    together = processes()
    check_places(spec)
    spec = sized_as_started(spec)
    state = read_checkpoint(spec)
    left = None if state is None else head_as_left(spec, state)
    call, tokenizer = open_target(spec.target)
    made_with = trained_with(spec, call, tokenizer)
    if left is not None:
        check_template(spec, left.config.trained_with, made_with)
    spec = spec.model_copy(update={"head": spec.head.model_copy(update={"layers": fused_layers(spec.head, call.num_layers)})})
    head_sizes(spec.head, text_config(call.config))
    plan = FeaturePlan(spec.data.top_k, spec.head.layers or spec.data.keep_layers)
    check_plan(plan, call.vocab_size, call.num_layers)
    begun = None if state is not None else head_to_start_from(spec, (call.hidden_size or 0, call.vocab_size))
    store = FeatureStore(spec.features, spec.data, tokenizer, call, plan, spec.data_seed)
    if store.left_out and together.is_first:
        report({"left_out": store.left_out})
    counts = store.counts(call.vocab_size)
    ids = _draft_ids(spec, counts, state, begun)
    borrowed = borrow(call, None if ids is None else ids.to(call.device))
    held_out = _prepare(store, spec, report if together.is_first else _nothing, together)
    head = _first(spec, call, borrowed, store, made_with, begun) if left is None else left
    if ids is not None and together.is_first:
        report({"covered": {"train": coverage(counts, ids), "held_out": coverage(held_out.token_counts(call.vocab_size), ids)}})
    dtype = torch.bfloat16 if spec.autocast else torch.float32
    borrowed = Borrowed(borrowed.embedding.to(dtype), borrowed.lm_head.to(dtype), ids)
    run = Trainer(spec, head.to(call.device), borrowed, _growing(store, spec, together), held_out, report, together)
    if state is not None:
        restored(run, state)
        if together.is_first:
            forget_later_steps(spec.output / LOG, run.step)
    return run


def open_target(target: TargetSpec) -> tuple[ModelCall, Any]:
    """The target's model and its tokenizer. Raises TargetMismatch where there is none."""
    folder = str(unpacked_folder()) if target.model is None else str(expanded(target.model))
    trust: dict[str, Any] = {"revision": target.revision, "trust_remote_code": target.trust_remote_code}
    tokenizer = load_tokenizer(folder, **trust)
    if tokenizer is None:
        raise TargetMismatch(f"'{folder}' comes without a tokenizer, so that conversations cannot be read")
    return ModelCall(
        load_model(folder, dtype=target.dtype, device=target.device, attention=target.attention, **trust)
    ), tokenizer


def _prepare(store: FeatureStore, spec: TrainingSpec, report: Report, together: Processes) -> FeatureSet:
    """Say what features will cost, and compute as many as the first step needs: the first process for all.

    The held-out ones come first, so that it is known soon whether they can be validated on.
    """
    held, parts = f"{spec.data.validate_on}-held", list(spec.data.sources)
    if together.is_first:
        store.cost([held, *parts])  # refuses shards of another target before any is written
        store.write([held])
    together.wait()
    held_out = FeatureSet(store.present(held), layers=bool(spec.head.layers)).greedy_only()
    if together.is_first:
        report({"features_missing": asdict(store.cost(parts))})
        store.grow(0)
    together.wait()
    return held_out


def _growing(store: FeatureStore, spec: TrainingSpec, together: Processes) -> Callable[[int], list[Path]]:
    """The shards that an epoch is to use: all that are there, and at least as many tokens as it is to have."""

    def shards(epoch: int) -> list[Path]:
        if together.is_first and spec.data.tokens_per_epoch:
            store.grow(epoch)
        together.wait()
        return store.training_shards()

    return shards


def trained_with(spec: TrainingSpec | JudgeSpec, call: ModelCall, tokenizer: Any) -> TrainedWith:
    """What the head's config says of its target."""
    name = builtin_name() if spec.target.model is None else spec.target.model
    template = ChatTemplate(tokenizer).text
    return TrainedWith(target=name, revision=getattr(call.config, "_commit_hash", None), chat_template=template_hash(template))


def _draft_ids(
    spec: TrainingSpec, counts: torch.Tensor, state: dict[str, Any] | None, begun: HeadCheckpoint | None
) -> torch.Tensor | None:
    if state is not None:
        return state["draft_ids"]  # type: ignore[no-any-return]
    return draft_ids(spec.head, counts) if begun is None else begun.draft_ids


def _first(
    spec: TrainingSpec,
    call: ModelCall,
    borrowed: Borrowed,
    store: FeatureStore,
    made_with: TrainedWith,
    begun: HeadCheckpoint | None,
) -> TrainedHead:
    """The head of a run's first step: a fresh one, or the one that it starts from."""
    if begun is None:
        data = FeatureSet(store.training_shards(), layers=bool(spec.head.layers))
        config = head_config(spec.head, text_config(call.config), borrowed.embedding, data)
        head = fresh_head(config.model_copy(update={"trained_with": made_with}), borrowed.lm_head, spec.seed)
    else:
        head = continued(begun, made_with)
    write_whole(spec.output / "config.json", head.config.model_dump_json(indent=2))
    return head


def log_to(path: Path) -> Report:
    """Appends JSON lines; a last line that was cut short goes."""
    if is_file(path):
        cut_unfinished_line(path)
    return lambda record: append_lines(path, [record])


def forget_later_steps(path: Path, step: int) -> None:
    """Drop what a log says of steps behind `step`: the run goes back to there, and makes them again."""
    if not is_file(path):
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not _is_later(line, step)]
    if len(kept) < len(lines):
        write_whole(path, "".join(kept))


def _is_later(line: str, step: int) -> bool:
    try:
        record = parse_json(line, nan=True)
    except ValueError:
        return False
    made = record.get("step") if isinstance(record, dict) else None
    return isinstance(made, int) and made > step


def _nothing(record: dict[str, Any]) -> None:
    """What processes other than the first report."""


def judge_run(spec: JudgeSpec) -> Validation:
    """Train a judge from its answers, and write it. Raises SpecError for answers that cannot be read or say nothing."""
    if (other := no_folder(spec.output)) is not None:
        raise SpecError(f"output: {other} is a file, and a folder is to be there; give another name")
    with exclusive(spec.output, folder=True):
        call, tokenizer = open_target(spec.target)
        answers = labelled(spec.data.path, LossMask(tokenizer), tokenizer.decode, spec.data.max_tokens)
        return train_judge(spec, call, answers, trained_with(spec, call, tokenizer))


def claim_output(spec: TrainingSpec) -> AbstractContextManager[None]:
    """Keeps other runs out of the output folder. Raises SpecError where one is at work there, or no folder can be."""
    check_places(spec)
    return exclusive(spec.output, folder=True) if processes().is_first else nullcontext()


def check_places(spec: TrainingSpec) -> None:
    """Raise SpecError where a folder is to be and a file is, or the other way round."""
    for name, folder in (("features", spec.features), ("output", spec.output), ("output", spec.output / "head")):
        if (other := no_folder(folder)) is not None:
            raise SpecError(f"{name}: {other} is a file, and a folder is to be there; give another name")
    for name in FILES:
        if is_folder(spec.output / name):
            raise SpecError(f"output: {spec.output / name} is a folder, and a file is to be written there; give another name")


def no_folder(path: Path) -> Path | None:
    """What is there, of the path or a folder above it, and is no folder."""
    there = next((place for place in (path, *path.parents) if exists(place)), None)
    return None if there is None or is_folder(there) else there
