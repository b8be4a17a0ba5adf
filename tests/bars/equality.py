"""Ids of every shipped strategy against plain decoding and `transformers.generate`, with a ledger of near-ties.

Resumable: every answer is appended to --results as one JSON line, and answers that are there are not made again.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import specdec
from specdec.interfaces.parts import BuildTools
from specdec.sampling.keyed_noise import gumbels, mix
from specdec.sampling.params import SamplingParams
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget
from specdec.targets.gguf_cache import unpacked_folder

GREEDY = [
    "plain", "ngram-chain", "ngram-tree", "suffix", "recycling", "mixture", "adaptive",
    "eagle-chain", "eagle-tree", "eagle2", "eagle3",
]  # fmt: skip
SELF = ["self-greedy-chain", "self-sampled-chain", "self-fixed", "self-dynamic", "self-iid", "self-wor"]
MATCH = [*GREEDY, "self-greedy-chain", "self-dynamic"]
WARPED = {"temperature": 1.0, "top_p": 0.95}


def read_prompts(path: Path, count: int) -> list[str]:
    return [json.loads(line)["turns"][0] for line in path.read_text().splitlines()[:count]]


class Results:
    """Answers by (mode, strategy, prompt), kept in a JSON-lines file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.answers[row["mode"], row["strategy"], row["prompt"]] = row["tokens"]

    def fill(self, mode, strategy, numbers, batch, make):
        """Make the missing answers in batches: `make` maps prompt numbers to (tokens, tau) pairs."""
        missing = [n for n in numbers if (mode, strategy, n) not in self.answers]
        for begin in range(0, len(missing), batch):
            part = missing[begin : begin + batch]
            began = time.perf_counter()
            made = make(part)
            with self.path.open("a") as file:
                for number, (tokens, tau) in zip(part, made, strict=True):
                    self.answers[mode, strategy, number] = tokens
                    row = {"mode": mode, "strategy": strategy, "prompt": number, "tokens": tokens, "tau": tau}
                    file.write(json.dumps(row) + "\n")
            taus = ", ".join(str(tau) for _, tau in made)
            print(f"{mode:8} {strategy:20} prompts {part}: {time.perf_counter() - began:.0f} s, tau {taus}", flush=True)


def hugging_face_answer(model, ids, max_new_tokens):
    inputs = torch.tensor([ids])
    out = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=2
    )
    return out[0, len(ids) :].tolist(), None


def gap_at_divergence(model, prompt, ours, other, sampling, seed):
    """The teacher-forced gap at the first difference, in logits (T = 0) or in log p + G (T > 0); None without one."""
    at = next((i for i, (a, b) in enumerate(zip(ours, other, strict=False)) if a != b), None)
    if at is None:
        return None if len(ours) == len(other) else (min(len(ours), len(other)), float("inf"))
    prefix = [*prompt, *ours[:at]]
    with torch.no_grad():
        logits = model(torch.tensor([prefix]), use_cache=False).logits[0, -1].double()
    pair = torch.tensor([ours[at], other[at]])
    if not sampling.temperature:
        return at, float((logits[pair[0]] - logits[pair[1]]).abs())
    scores = logits.log_softmax(-1)
    noise = gumbels(mix(seed, 1), len(prefix), pair)
    keys = scores[pair] + noise
    ordered = scores.exp().sort(descending=True).values
    before = ordered.cumsum(0) - ordered
    edge = ordered[int((before < sampling.top_p).sum()) - 1].log()
    to_cut = float((scores[pair] - edge).abs().min())
    return at, min(float((keys[0] - keys[1]).abs()), to_cut)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1, help="prompts that are decoded together")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--limit", type=float, default=1.6e-4, help="gap of a near-tie")
    parser.add_argument("--results", type=Path, default=Path("results/equality.jsonl"))
    parser.add_argument("--strategies", nargs="*", default=GREEDY + SELF)
    parser.add_argument("--no-sampled", action="store_true")
    options = parser.parse_args()
    options.strategies = list(dict.fromkeys(["plain", *options.strategies]))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = Results(options.results)
    target = BuiltinTarget.build(BuiltinOptions(dtype="float32"), BuildTools())
    model = AutoModelForCausalLM.from_pretrained(unpacked_folder(), dtype=torch.float32).eval()
    texts = read_prompts(options.prompts, options.count)
    prompts = [target.codec.chat([{"role": "user", "content": text}]) for text in texts]
    modes = [("greedy", SamplingParams(), options.strategies)]
    if not options.no_sampled:
        modes.append(("sampled", SamplingParams(**WARPED), [s for s in options.strategies if s in MATCH]))
    bad = 0
    numbers = range(len(prompts))
    answers = results.answers
    for mode, sampling, strategies in modes:
        for name in strategies:
            decoder = specdec.load(name, target=target)

            def make(part, decoder=decoder, sampling=sampling):
                made = decoder.generate(
                    [prompts[n] for n in part],
                    max_new_tokens=options.max_new_tokens,
                    sampling=sampling,
                    seed=[1000 + n for n in part],
                )
                return [(list(answer.tokens), round(answer.tau, 3)) for answer in made]

            results.fill(mode, name, numbers, options.batch, make)
        references = ["plain"]
        if mode == "greedy":
            references.append("transformers")
            results.fill(
                mode,
                "transformers",
                numbers,
                1,
                lambda part: [hugging_face_answer(model, prompts[n], options.max_new_tokens) for n in part],
            )
        for name in strategies:
            differences = tokens = 0
            for i, prompt in enumerate(prompts):
                ours = answers[mode, name, i]
                tokens += len(ours)
                for reference in references:
                    found = gap_at_divergence(model, prompt, ours, answers[mode, reference, i], sampling, 1000 + i)
                    if found is None:
                        continue
                    at, gap = found
                    differences += reference == "plain"
                    verdict = "near-tie" if gap <= options.limit else "BAD"
                    bad += gap > options.limit
                    print(f"{mode} {name} against {reference}: prompt {i} differs at token {at}, gap {gap:.2e}: {verdict}")
            if mode == "sampled" and differences > 2:
                bad += 1
            print(f"{mode:8} {name:20} {tokens} tokens, {differences} differences from plain decoding", flush=True)
    print("bar holds" if not bad else f"bar does NOT hold: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
