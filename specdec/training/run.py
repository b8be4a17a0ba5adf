"""From a training spec to a running trainer."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.targets.gguf_cache import unpacked_folder
from specdec.targets.loading import load_model, load_tokenizer
from specdec.targets.model_call import ModelCall
from specdec.training.building import borrow, draft_ids, fresh_head, head_config
from specdec.training.dataset import FeatureSet, coverage
from specdec.training.features import FeaturePlan
from specdec.training.loop import Trainer
from specdec.training.processes import processes
from specdec.training.spec import TrainingSpec
from specdec.training.store import FeatureStore
from specdec.training.validation import Borrowed


def trainer(spec: TrainingSpec, report: Callable[[dict[str, Any]], None]) -> Trainer:
    """A fresh trainer, or the one of the spec's output folder as its checkpoint left it; features are computed first."""
    folder = target_folder(spec)
    call = ModelCall(load_model(folder, dtype="bfloat16", device="auto", attention="sdpa"))
    tokenizer = load_tokenizer(folder, revision=None, trust_remote_code=False)
    plan = FeaturePlan(spec.data.top_k, spec.head.layers or spec.data.keep_layers)
    store = FeatureStore(spec.features, spec.data, tokenizer, call, plan, spec.data_seed)
    held_out = _prepare(store, spec, report)
    counts = store.counts(call.vocab_size)
    ids = draft_ids(spec.head, counts)
    path = spec.output / "checkpoint.pt"
    state = torch.load(path, weights_only=True, map_location="cpu") if path.is_file() else None
    if state is not None:
        ids = state["draft_ids"]
    borrowed = borrow(call, None if ids is None else ids.to(call.device))
    head = _fresh(spec, call, borrowed, store) if state is None else _as_left(spec)
    if ids is not None:
        report({"covered": {"train": coverage(counts, ids), "held_out": coverage(held_out.token_counts(call.vocab_size), ids)}})
    dtype = torch.bfloat16 if spec.autocast else torch.float32
    borrowed = Borrowed(borrowed.embedding.to(dtype), borrowed.lm_head.to(dtype), ids)
    run = Trainer(spec, head.to(call.device), borrowed, _growing(store, spec), held_out, report, processes())
    if state is not None:
        run.restore(state)
    return run


def target_folder(spec: TrainingSpec) -> str:
    """The folder or hub id of the target's weights and tokenizer."""
    return str(unpacked_folder()) if spec.target.get("use") == "builtin" else str(spec.target["model"])


def _prepare(store: FeatureStore, spec: TrainingSpec, report: Callable[[dict[str, Any]], None]) -> FeatureSet:
    """Say what features will cost, and compute as many as the first step needs."""
    held, parts = f"{spec.data.validate_on}-held", list(spec.data.sources)
    store.write([held])
    report({"features_missing": asdict(store.cost(parts))})
    done = sum(FeatureSet([path], layers=False).tokens for path in set(store.training_shards()))
    first = spec.data.first_tokens
    if first is None or done < first:
        store.write(parts, None if first is None else first - done)
    return FeatureSet(store.present(held), layers=bool(spec.head.layers)).greedy_only()


def _growing(store: FeatureStore, spec: TrainingSpec) -> Callable[[], list[Path]]:
    """The shards that an epoch is to use; each call first adds some more."""

    def shards() -> list[Path]:
        if spec.data.tokens_per_epoch and store.training_shards():
            store.write(list(spec.data.sources), spec.data.tokens_per_epoch)
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


def log_to(path: Path) -> Callable[[dict[str, Any]], None]:
    """Appends JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def report(record: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    return report
