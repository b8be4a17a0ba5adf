"""From a training spec to a running trainer."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specdec.errors import SpecError, TargetMismatch
from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.targets.gguf_cache import unpacked_folder
from specdec.targets.loading import load_model, load_tokenizer
from specdec.targets.model_call import ModelCall
from specdec.training.building import borrow, draft_ids, fresh_head, fused_layers, head_config
from specdec.training.dataset import FeatureSet, coverage
from specdec.training.features import FeaturePlan
from specdec.training.loop import Trainer
from specdec.training.processes import Processes, processes
from specdec.training.resuming import read_checkpoint
from specdec.training.spec import TrainingSpec
from specdec.training.store import FeatureStore
from specdec.training.validation import Borrowed

Report = Callable[[dict[str, Any]], None]


def trainer(spec: TrainingSpec, report: Report) -> Trainer:
    """A fresh trainer, or the one of the spec's output folder as its checkpoint left it; features are computed first.

    Raises SpecError for a checkpoint of a run that differs in what cannot change midway.
    """
    together = processes()
    state = read_checkpoint(spec)
    call, tokenizer = _target(spec)
    spec = spec.model_copy(update={"head": spec.head.model_copy(update={"layers": fused_layers(spec.head, call.num_layers)})})
    plan = FeaturePlan(spec.data.top_k, spec.head.layers or spec.data.keep_layers)
    store = FeatureStore(spec.features, spec.data, tokenizer, call, plan, spec.data_seed)
    held_out = _prepare(store, spec, report if together.is_first else _nothing, together)
    counts = store.counts(call.vocab_size)
    ids = draft_ids(spec.head, counts) if state is None else state["draft_ids"]
    borrowed = borrow(call, None if ids is None else ids.to(call.device))
    head = _fresh(spec, call, borrowed, store) if state is None else _as_left(spec)
    if ids is not None and together.is_first:
        report({"covered": {"train": coverage(counts, ids), "held_out": coverage(held_out.token_counts(call.vocab_size), ids)}})
    dtype = torch.bfloat16 if spec.autocast else torch.float32
    borrowed = Borrowed(borrowed.embedding.to(dtype), borrowed.lm_head.to(dtype), ids)
    run = Trainer(spec, head.to(call.device), borrowed, _growing(store, spec, together), held_out, report, together)
    if state is not None:
        run.restore(state)
    return run


def target_folder(spec: TrainingSpec) -> str:
    """The folder or hub id of the target's weights and tokenizer."""
    return str(unpacked_folder()) if spec.target.model is None else str(Path(spec.target.model).expanduser())


def _target(spec: TrainingSpec) -> tuple[ModelCall, Any]:
    folder, target = target_folder(spec), spec.target
    trust: dict[str, Any] = {"revision": target.revision, "trust_remote_code": target.trust_remote_code}
    tokenizer = load_tokenizer(folder, **trust)
    if tokenizer is None:
        raise TargetMismatch(f"'{folder}' comes without a tokenizer, so that conversations cannot be read")
    return ModelCall(load_model(folder, dtype=target.dtype, device=target.device, attention="sdpa", **trust)), tokenizer


def _prepare(store: FeatureStore, spec: TrainingSpec, report: Report, together: Processes) -> FeatureSet:
    """Say what features will cost, and compute as many as the first step needs: the first process for all."""
    held, parts = f"{spec.data.validate_on}-held", list(spec.data.sources)
    if together.is_first:
        store.write([held])
        report({"features_missing": asdict(store.cost(parts))})
        store.grow(0)
    together.wait()
    found = store.present(held)
    if not found:
        raise SpecError(
            f"no conversation of '{spec.data.validate_on}' is held out; more of them or a larger data.held_out_share would work"
        )
    return FeatureSet(found, layers=bool(spec.head.layers)).greedy_only()


def _growing(store: FeatureStore, spec: TrainingSpec, together: Processes) -> Callable[[int], list[Path]]:
    """The shards that an epoch is to use: all that are there, and at least as many tokens as it is to have."""

    def shards(epoch: int) -> list[Path]:
        if together.is_first and spec.data.tokens_per_epoch:
            store.grow(epoch)
        together.wait()
        return store.training_shards()

    return shards


def _fresh(spec: TrainingSpec, call: ModelCall, borrowed: Borrowed, store: FeatureStore) -> EagleHead | EagleHead3:
    data = FeatureSet(store.training_shards(), layers=bool(spec.head.layers))
    config = head_config(spec.head, call.config, borrowed.embedding, data)
    spec.output.mkdir(parents=True, exist_ok=True)
    (spec.output / "config.json").write_text(config.model_dump_json(indent=2))
    return fresh_head(config, borrowed.lm_head, spec.seed)


def _as_left(spec: TrainingSpec) -> EagleHead | EagleHead3:
    config = HeadConfig(**json.loads((spec.output / "config.json").read_text()))
    return EagleHead3(config) if config.layers else EagleHead(config)


def log_to(path: Path) -> Report:
    """Appends JSON lines; a last line that was cut short goes."""
    if path.is_file():
        content = path.read_bytes()
        if (whole := content.rfind(b"\n") + 1) < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)

    def report(record: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    return report


def _nothing(record: dict[str, Any]) -> None:
    """What processes other than the first report."""
