"""Correct decoders through the kit for decoders of others, again and again: how often is one refuted, at 1e-6? None may be.

On a table and on a two-layer model many short proofs, on the embedded model a few longer ones, each with another seed.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import specdec
from specdec.bench.baselines import reference_model
from specdec.compose import resolve
from specdec.config.catalog import load_catalog
from specdec.integrations.transformers import Generating
from specdec.interfaces.declarations import Kind
from specdec.interfaces.probability_table import ProbabilityTable, TableOptions
from specdec.losslessness.external.instrumented import DraftedStep, InstrumentedAnswer
from specdec.losslessness.external.level import prove_callable
from specdec.losslessness.levels import Outcome
from specdec.sampling.params import SamplingParams

CATALOG = load_catalog()
HOT = SamplingParams(temperature=1.0)
VOCAB = 24


def table(seed):
    return {"vocab": VOCAB, "random": {"order": 1, "seed": seed}}


def rows_of(seed):
    known = ProbabilityTable(TableOptions.model_validate(table(seed)))
    return np.stack([known.log_probs([token]).exp().numpy() for token in range(VOCAB)])


class Chains:
    """Rejection sampling of chains of three on two tables."""

    def __init__(self, p, q):
        self.p, self.q = p, q

    def __call__(self, ids, n, seed):
        rng, text, steps = np.random.default_rng(seed), list(ids), []
        while len(text) < len(ids) + n:
            steps.append(self.step(text[-1], rng))
            text += steps[-1].emitted
        return InstrumentedAnswer(text[len(ids) : len(ids) + n], steps, "rejection")

    def step(self, token, rng):
        path = [token]
        for _ in range(3):
            path.append(int(rng.choice(VOCAB, p=self.q[path[-1]])))
        q = self.q[path[:-1]]
        for place, draft in enumerate(path[1:]):
            p = self.p[path[place]]
            if rng.random() >= p[draft] / q[place][draft]:
                rest = np.clip(p - q[place], 0, None)
                return DraftedStep(path[1:], place, int(rng.choice(VOCAB, p=rest / rest.sum())), q)
        return DraftedStep(path[1:], 3, int(rng.choice(VOCAB, p=self.p[path[-1]])), q)


def tiny(folder, seed):
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    config.bos_token_id = config.eos_token_id = None
    LlamaForCausalLM(config).save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    model.generation_config.num_assistant_tokens = 4
    return model


def ours(strategy, target=None):
    decoder = specdec.load(strategy, target=target, set=["target.dtype=float32", "sampling.temperature=1.0"])
    return lambda ids, n, seed: decoder.generate([list(ids)], seed=[seed], max_new_tokens=n)[0].tokens


def run(name, answering, target, runs, seconds):
    """Outcomes of so many proofs with seeds of their own."""
    resolved = resolve("plain", CATALOG, settings=["sampling.temperature=1.0"], target=target)
    found, tokens, smallest = Counter(), 0, 1.0
    for seed in range(runs):
        result = prove_callable(answering, resolved, CATALOG, seconds=seconds, seed=seed, progress=lambda share, words: None)
        found[result.outcome] += 1
        tokens += result.facts["tokens"]
        smallest = min(smallest, result.facts["smallest_adjusted_p"])
        if result.outcome is Outcome.REFUTED:
            print(f"  seed {seed}: {result.words}")
    outcomes = ", ".join(f"{count} {outcome.value}" for outcome, count in found.items())
    print(
        f"{name}: {found[Outcome.REFUTED]} of {runs} refuted ({outcomes}); {tokens} tokens, smallest p {smallest:.2g}",
        flush=True,
    )
    return found[Outcome.REFUTED]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="proofs on the table and the small model")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of these")
    parser.add_argument("--real-runs", type=int, default=5, help="proofs of each decoder on the embedded model")
    parser.add_argument("--real-seconds", type=float, default=120.0, help="of each of these")
    options = parser.parse_args()
    alarms = run(
        "chains on a table", Chains(rows_of(3), rows_of(4)), {"use": "tabular", **table(3)}, options.runs, options.seconds
    )
    with tempfile.TemporaryDirectory() as folder:
        target, draft = tiny(Path(folder) / "target", 0), tiny(Path(folder) / "draft", 1)
        where = str(Path(folder) / "target")
        for name, engine in {
            "transformers assisted": Generating(target, HOT, assistant_model=draft),
            "transformers lookup": Generating(target, HOT, prompt_lookup_num_tokens=3),
            "our ngram-tree": ours("ngram-tree", where),
        }.items():
            alarms += run(f"{name} on two layers", engine, where, options.runs, options.seconds)
    if options.real_runs:
        plain = resolve("plain", CATALOG, settings=["target.dtype=float32"])
        model = reference_model(plain.parts[Kind.TARGET])
        for name, engine in {
            "transformers generate": Generating(model, HOT),
            "transformers lookup": Generating(model, HOT, prompt_lookup_num_tokens=5),
            "our eagle3-coupled": ours("eagle3-coupled"),
        }.items():
            alarms += run(f"{name} on the embedded model", engine, None, options.real_runs, options.real_seconds)
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
