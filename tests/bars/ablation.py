"""Heads that differ in one thing each, trained alike and measured on the same MT-bench first turns: docs/eagle.md's table.

Every head sees as many shards of conversations, tokens and steps, over one draft vocabulary. Each finished piece is a line of
results.jsonl, and a piece that is there is not done again, so that the script may be stopped at any time and started anew.
"""

import argparse
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ablation_page
import torch

import specdec
from specdec.heads.config import Inputs
from specdec.heads.formats.reading import read_head
from specdec.interfaces.parts import BuildTools
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget
from specdec.targets.gguf_cache import unpacked_folder
from specdec.targets.loading import load_model
from specdec.targets.model_call import ModelCall
from specdec.training.borrowed import Borrowed
from specdec.training.conversations import Conversation
from specdec.training.dataset import FeatureSet, draft_vocabulary
from specdec.training.features import FeaturePlan, write_shard
from specdec.training.initialization import borrow, fresh_head
from specdec.training.loop import Trainer
from specdec.training.sizes import head_config
from specdec.training.spec import TrainingSpec
from specdec.training.validation import chain_acceptance

LAYERS = (2, 15, 27)
CHAT, OWN = "chat", "own"
ANSWER_TOKENS = 128
BATCH = 10

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "shifted": (CHAT, {}),
    "unshifted": (CHAT, {"inputs": Inputs.FEATURE_AND_UNSHIFTED_TOKEN.value}),
    "feature": (CHAT, {"inputs": Inputs.FEATURE.value}),
    "token": (CHAT, {"inputs": Inputs.TOKEN.value}),
    "eagle3": (CHAT, {"kind": "eagle3", "layers": LAYERS}),
    "shifted-own": (OWN, {}),
    "eagle3-own": (OWN, {"kind": "eagle3", "layers": LAYERS}),
}
"""Name: what it learns from, and how it differs."""

TREES = {
    "chain": {"use": "chain", "length": 5},
    "static": {"use": "fixed", "file": "eagle-25"},
    "dynamic": {"use": "dynamic", "width": 8, "depth": 5, "nodes": 25},
}
DECODED = ("shifted", "shifted-own", "eagle3")


class Results:
    """A file of finished pieces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.pieces = {(record["piece"], json.dumps(record["settings"])): record for record in whole_lines(path)}

    def do(self, piece: str, settings: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The piece, done now unless it was done before with these settings."""
        key = piece, json.dumps(settings)
        if key not in self.pieces:
            print(f"{piece} {settings}", flush=True)
            self.pieces[key] = {"piece": piece, "settings": settings, **work()}
            with self.path.open("a") as file:
                file.write(json.dumps(self.pieces[key]) + "\n")
        return self.pieces[key]


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file; a last line that was cut short is cut off."""
    text = path.read_text() if path.is_file() else ""
    path.write_text(text[: text.rfind("\n") + 1])
    return [json.loads(line) for line in path.read_text().splitlines()]


def shards(options, source: str) -> list[Path]:
    found = [options.features / f"{source}-{place:04d}.safetensors" for place in range(options.shards)]
    missing = [path for path in found if not path.is_file()]
    if missing:
        raise SystemExit(f"no features: {', '.join(map(str, missing))}")
    return found


def training_spec(options, name: str) -> TrainingSpec:
    source, changes = HEADS[name]
    third = changes.get("kind") == "eagle3"
    return TrainingSpec(
        name=name,
        target={"use": "builtin"},
        features=options.features,
        output=folder_of(options, name),
        data={"sources": {source: {"path": f"{source}.jsonl"}}, "validate_on": source},
        head={"draft_vocab_size": options.vocabulary, **changes},
        losses={"regression": 0.0 if third else 0.1, "cross_entropy": 1.0},
        optimizer={"use": "muon", "muon_learning_rate": 0.02, "learning_rate": 1e-3 if third else 2e-3, "warmup": 0.02},
        steps={"start": 2, "end": 2},
        budget={"steps": options.steps},
        tokens_per_batch=2048,
        validate_every=10**9,
        checkpoint_every=50,
    )


def folder_of(options, name: str) -> Path:
    return options.work / f"{name}-{options.steps}"


def train(options, call: ModelCall, ids: torch.Tensor, name: str) -> dict[str, Any]:
    """Train a head, from its checkpoint if it has one."""
    spec = training_spec(options, name)
    paths, layers = shards(options, HEADS[name][0]), bool(spec.head.layers)
    data = FeatureSet(paths, layers=layers)
    held_out = FeatureSet([options.features / "own-held-0000.safetensors"], layers=layers).greedy_only()
    borrowed = borrow(call, ids)
    head = fresh_head(head_config(spec.head, call.config, borrowed.embedding, data), borrowed.lm_head, spec.seed)
    lent = Borrowed(borrowed.embedding.to(torch.bfloat16), borrowed.lm_head.to(torch.bfloat16), ids)
    log: list[dict[str, Any]] = []
    run = Trainer(spec, head, lent, lambda epoch: paths, held_out, log.append)
    checkpoint = spec.output / "checkpoint.pt"
    if checkpoint.is_file():
        run.restore(torch.load(checkpoint, weights_only=True))
    run.run()
    if not (spec.output / "head" / "model.safetensors").is_file():
        raise SystemExit(f"{name}: no head was kept")
    return {"tokens": run.tokens, "distinct_tokens": data.tokens, "seconds": run.seconds, "held_out_tau": log[-1]["tau"]}


def answers(options, questions: list[str], target) -> list[Conversation]:
    """The target's own greedy answers, made once."""
    path = options.work / "answers.jsonl"
    known = whole_lines(path)
    plain = specdec.load("plain", target=target)
    with path.open("a") as file:
        for question in questions[len(known) :]:
            (made,) = plain.generate([[{"role": "user", "content": question}]], max_new_tokens=ANSWER_TOKENS)
            known.append({"prompt": list(made.prompt_tokens), "answer": list(made.tokens)})
            file.write(json.dumps(known[-1]) + "\n")
            file.flush()
    return [
        Conversation(
            tuple(k["prompt"] + k["answer"]), (False,) * len(k["prompt"]) + (True,) * len(k["answer"]), f"{place:064x}"
        )
        for place, k in enumerate(known[: len(questions)])
    ]


def chains(options, call: ModelCall, told: list[Conversation], name: str) -> dict[str, Any]:
    """Chain acceptance on each answer, teacher-forced."""
    path = options.work / f"answers-{len(told)}.safetensors"
    if not path.is_file():
        write_shard(call, told, FeaturePlan(layers=LAYERS), path)
    checkpoint = read_head(folder_of(options, name) / "head", dtype=torch.bfloat16)
    data = FeatureSet([path], layers=bool(checkpoint.config.layers))
    borrowed = borrow(call, checkpoint.draft_ids)
    counts = [chain_acceptance(checkpoint.head, borrowed, [data.load([place])]) for place in range(len(told))]
    fields = ("tested", "accepted", "cycles", "committed")
    return {"prompts": [{f: dataclasses.asdict(c)[f] for f in fields} for c in counts]}


def decode(options, target, questions: list[str], name: str, tree: str, temperature: float) -> dict[str, Any]:
    """Cycles and committed tokens of each answer, by the decoder itself."""
    spec = {"target": {"use": "builtin"}, "verifier": {"use": "match"}, "tree": TREES[tree]}
    spec |= {"drafter": {"use": "eagle3" if "eagle3" in name else "eagle", "head": str(folder_of(options, name) / "head")}}
    decoder = specdec.load({**spec, "sampling": {"temperature": temperature}}, target=target)
    counts = []
    for begin in range(0, len(questions), BATCH):
        some = [[{"role": "user", "content": question}] for question in questions[begin : begin + BATCH]]
        seeds = list(range(begin, begin + len(some)))
        for made in decoder.generate(some, max_new_tokens=ANSWER_TOKENS, seed=seeds):
            counts.append({"cycles": len(made.records), "committed": sum(record.committed for record in made.records)})
    return {"prompts": counts}


def measure(options) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    results = Results(options.out / "results.jsonl")
    call = ModelCall(load_model(str(unpacked_folder()), dtype="bfloat16", device="cpu", attention="sdpa"))
    every = FeatureSet([path for source in (CHAT, OWN) for path in shards(options, source)], layers=False)
    ids = draft_vocabulary(every.token_counts(call.vocab_size), options.vocabulary)
    questions = [json.loads(line)["turns"][0] for line in options.prompts_file.read_text().splitlines()[: options.prompts]]
    sizes = {"steps": options.steps, "shards": options.shards}
    done = [results.do(f"train {name}", sizes, functools.partial(train, options, call, ids, name)) for name in options.heads]
    target = BuiltinTarget.build(BuiltinOptions(dtype="bfloat16"), BuildTools())
    told = answers(options, questions, target)
    asked = {**sizes, "prompts": options.prompts}
    done += [results.do(f"chain {name}", asked, functools.partial(chains, options, call, told, name)) for name in options.heads]
    few = {**sizes, "prompts": options.decode_prompts}
    for name, temperature, tree in itertools.product(DECODED, (0.0, 1.0), TREES):
        if name in options.heads:
            work = functools.partial(decode, options, target, questions[: options.decode_prompts], name, tree, temperature)
            done.append(results.do(f"decode {name} {tree} {temperature:g}", few, work))
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, default=Path("~/.cache/specdec/training/smollm2").expanduser())
    parser.add_argument("--shards", type=int, default=8, help="of each source: every head learns from as many")
    parser.add_argument("--prompts-file", type=Path, required=True, help="mt_bench.jsonl")
    parser.add_argument("--prompts", type=int, default=80, help="for chains by teacher forcing")
    parser.add_argument("--decode-prompts", type=int, default=20, help="for real decoding")
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps of each head")
    parser.add_argument("--vocabulary", type=int, default=12288)
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--work", type=Path, default=Path("~/.cache/specdec/ablation").expanduser(), help="heads and answers")
    parser.add_argument("--out", type=Path, default=Path("docs/ablation"), help="results.jsonl and plots")
    parser.add_argument("--page", type=Path, default=Path("docs/eagle.md"), help="the page whose table is replaced")
    options = parser.parse_args()
    ablation_page.write(measure(options), options.out, options.page)


if __name__ == "__main__":
    main()
