"""Bitwise mode: every strategy's ids against plain decoding's in the same mode, and tau against the normal mode's.

Resumable: every answer is appended to --results as one JSON line, and answers of the same dtype and length that are there are
not made again.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import specdec
from specdec.errors import NumericsError, TargetMismatch
from specdec.interfaces.parts import BuildTools
from specdec.sampling.params import SamplingParams
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget

EAGLE = {"use": "eagle", "head": "builtin"}
STRATEGIES = {
    "plain": {"extends": "plain"},
    "ngram-tree": {"extends": "ngram-tree"},
    "eagle, fixed eagle-25": {
        "extends": "own-model-eagle",
        "target": {"use": "builtin"},
        "drafter": EAGLE,
        "tree": {"use": "fixed", "file": "eagle-25"},
    },
    "eagle, dynamic": {
        "extends": "own-model-eagle",
        "target": {"use": "builtin"},
        "drafter": EAGLE,
        "tree": {"use": "dynamic", "width": 8, "depth": 5, "nodes": 16},
    },
}
SAMPLINGS = {"T = 0": SamplingParams(), "T = 1, top-p 0.95": SamplingParams(temperature=1.0, top_p=0.95)}
TAU_TOLERANCE = 0.05


class Results:
    """Answers by (mode, batch, sampling, strategy, prompt), kept in a JSON-lines file."""

    def __init__(self, path, settings):
        self.path = path
        self.settings = settings
        self.answers = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            if row["settings"] == settings:
                self.answers[tuple(row["key"])] = row

    def fill(self, key, numbers, batch, make):
        """Make the missing answers of a cell in batches; `make` maps prompt numbers to generations."""
        missing = [n for n in numbers if (*key, n) not in self.answers]
        for begin in range(0, len(missing), batch):
            part = missing[begin : begin + batch]
            began = time.perf_counter()
            made = make(part)
            seconds = (time.perf_counter() - began) / len(part)
            with self.path.open("a") as file:
                for number, answer in zip(part, made, strict=True):
                    committed = sum(record.committed for record in answer.records)
                    row = {
                        "settings": self.settings,
                        "key": [*key, number],
                        "tokens": list(answer.tokens),
                        "committed": committed,
                        "steps": len(answer.records),
                        "seconds": round(seconds, 2),
                    }
                    self.answers[*key, number] = row
                    file.write(json.dumps(row) + "\n")
            print(f"  {' | '.join(map(str, key))} prompts {part}: {seconds * len(part):.0f} s", flush=True)

    def tau(self, key, numbers):
        rows = [self.answers[*key, n] for n in numbers]
        return sum(row["committed"] for row in rows) / max(1, sum(row["steps"] for row in rows))

    def seconds(self, key, numbers):
        return sum(self.answers[*key, n]["seconds"] for n in numbers)


def first_difference(ours, plain):
    """Where two answers part; None if they are the same."""
    if ours == plain:
        return None
    return next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), min(len(ours), len(plain)))


def load_target(options, *, bitwise):
    return BuiltinTarget.build(BuiltinOptions(dtype=options.dtype, bitwise=bitwise), BuildTools())


def fill_all(results, options, mode, target, prompts):
    for batch, numbers in cells(options, prompts):
        for label, sampling in SAMPLINGS.items():
            for name in options.strategies:
                decoder = specdec.load({**STRATEGIES[name], "name": name.replace(", ", "-").replace(" ", "-")}, target=target)

                def make(part, decoder=decoder, sampling=sampling):
                    return decoder.generate(
                        [prompts[n] for n in part],
                        max_new_tokens=options.max_new_tokens,
                        sampling=sampling,
                        seed=[1000 + n for n in part],
                    )

                results.fill((mode, batch, label, name), numbers, batch, make)


def cells(options, prompts):
    """Batch size, and the numbers of the prompts that are decoded so."""
    return [(1, range(len(prompts))), (options.batch, range(min(options.batch_prompts, len(prompts))))]


def judge(results, options, prompts):
    """The table; how many cells break a bar."""
    bad = 0
    print(
        f"{'strategy':24} {'sampling':18} {'batch':>5} {'same':>7} {'tokens':>6} {'tau':>6} {'normal':>6} {'off':>6} {'s':>6}"
    )
    pooled = defaultdict(list)
    for batch, numbers in cells(options, prompts):
        for label in SAMPLINGS:
            for name in options.strategies:
                ours, normal = ("bitwise", batch, label, name), ("normal", batch, label, name)
                plain = ("bitwise", 1, label, "plain")
                parted = {
                    n: at
                    for n in numbers
                    if (at := first_difference(results.answers[*ours, n]["tokens"], results.answers[*plain, n]["tokens"]))
                    is not None
                }
                tau, normal_tau = results.tau(ours, numbers), results.tau(normal, numbers)
                off = tau / normal_tau - 1
                pooled[name].append(off)
                tokens = sum(len(results.answers[*ours, n]["tokens"]) for n in numbers)
                bad += bool(parted)
                print(
                    f"{name:24} {label:18} {batch:5} {len(numbers) - len(parted):3}/{len(numbers):<3} {tokens:6} "
                    f"{tau:6.3f} {normal_tau:6.3f} {off:+6.1%} {results.seconds(ours, numbers):6.0f}"
                    + "".join(f"  prompt {n} parts at token {at}" for n, at in parted.items())
                )
    for name, offs in pooled.items():
        mean = sum(offs) / len(offs)
        bad += abs(mean) > TAU_TOLERANCE
        print(f"{name}: tau differs from the normal mode's by {mean:+.1%} on average (bar {TAU_TOLERANCE:.0%})")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4, help="prompts decoded together in the second part")
    parser.add_argument("--batch-prompts", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--results", type=Path, default=Path("results/bitwise.jsonl"))
    options = parser.parse_args()
    options.strategies = ["plain", *(name for name in options.strategies if name != "plain")]
    results = Results(options.results, [options.dtype, options.max_new_tokens])
    began = time.perf_counter()
    texts = [json.loads(line)["turns"][0] for line in options.prompts.read_text().splitlines()[: options.count]]
    prompts = []
    for mode in ("bitwise", "normal"):
        try:
            target = load_target(options, bitwise=mode == "bitwise")
            prompts = [target.codec.chat([{"role": "user", "content": text}]) for text in texts]
            print(f"{mode}: {target.facts.description}", flush=True)
            fill_all(results, options, mode, target, prompts)
        except (TargetMismatch, NumericsError) as error:
            print(f"refused: {error}")
            return 0
    bad = judge(results, options, prompts)
    print(f"{time.perf_counter() - began:.0f} s now; " + ("bar holds" if not bad else f"bar does NOT hold: {bad}"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
