"""How often drafts are accepted at T > 0: coupled to the target's noise, drawn from q, and the likeliest token.

Chains and trees by a drafter whose q is not p: the embedded model with its EAGLE head, or with itself at another temperature.
Prints tau, draft acceptance, and a bootstrap interval over prompts of the difference from deterministic drafting. Resumable:
every answer is one JSON line in --results.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy

import specdec
from specdec.interfaces.parts import BuildTools
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget

DRAFTERS = {
    "eagle": ({"use": "eagle", "head": "builtin"}, None),
    "self, cooler": ({"use": "model", "model": "target"}, 0.5),
}
FORMS = {
    "chain of 4": {
        "coupled": ({"use": "coupled", "widths": [1, 1, 1, 1]}, "match"),
        "sampled": ({"use": "chain", "length": 4, "draw": "sampled"}, "chain"),
        "deterministic": ({"use": "chain", "length": 4}, "match"),
    },
    "tree 4x2x1": {
        "coupled": ({"use": "coupled", "file": "wide-4x2x1"}, "match"),
        "sampled": ({"use": "sampled", "file": "wide-4x2x1"}, "multi_round"),
        "deterministic": ({"use": "fixed", "file": "wide-4x2x1"}, "match"),
    },
}


def read_prompts(path, count):
    """First turns, of `turns` or of `messages`."""
    found = []
    for line in path.read_text().splitlines()[:count]:
        row = json.loads(line)
        found.append(row["turns"][0] if "turns" in row else row["messages"][0]["content"])
    return found


def interval(differences, seed=0):
    """Mean and its bootstrap 95 % interval over prompts."""
    values = numpy.array(differences)
    draws = numpy.random.default_rng(seed).choice(values, (4000, len(values))).mean(1)
    low, high = numpy.quantile(draws, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


class Results:
    """(drafter, form, draw, temperature, prompt) -> steps, tokens, drafted and accepted."""

    def __init__(self, path):
        self.path = path
        self.rows = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[tuple(row["key"])] = row

    def add(self, key, answer):
        row = {
            "key": list(key),
            "steps": len(answer.records),
            "committed": sum(r.committed for r in answer.records),
            "drafted": sum(r.drafted for r in answer.records),
            "accepted": sum(r.accepted for r in answer.records),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows[key] = row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.7, 1.0])
    parser.add_argument("--drafters", nargs="*", default=list(DRAFTERS), choices=list(DRAFTERS))
    parser.add_argument("--results", type=Path, default=Path("results/coupled.jsonl"))
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = Results(options.results)
    target = BuiltinTarget.build(BuiltinOptions(dtype=options.dtype), BuildTools())
    texts = read_prompts(options.prompts, options.count)
    prompts = [target.codec.chat([{"role": "user", "content": text}]) for text in texts]
    cells = [
        (d, f, draw, t) for t in options.temperatures for d in options.drafters for f, draws in FORMS.items() for draw in draws
    ]
    decoders = {cell: decoder_of(cell, target) for cell in cells}
    for number, prompt in enumerate(prompts):
        for cell in cells:
            if (*cell, number) not in results.rows:
                [answer] = decoders[cell].generate([prompt], max_new_tokens=options.max_new_tokens, seed=7000 + number)
                results.add((*cell, number), answer)
        print(f"prompt {number} of {len(prompts)}", file=sys.stderr, flush=True)
    report(cells, results, len(prompts))


def decoder_of(cell, target):
    drafter, form, draw, temperature = cell
    part, cooler = DRAFTERS[drafter]
    tree, verifier = FORMS[form][draw]
    sampling = {"temperature": temperature}
    if cooler is not None:
        sampling["draft"] = {"temperature": temperature * cooler}
    return specdec.load({"drafter": part, "tree": tree, "verifier": {"use": verifier}, "sampling": sampling}, target=target)


def report(cells, results, count):
    print("| T | drafter | form | drafts | tau | accepted / drafted | tau beyond deterministic (95 %) |")
    print("|---|---|---|---|---|---|---|")
    for drafter, form, draw, temperature in sorted(cells, key=lambda c: (c[3], c[0], c[1])):
        taus = {
            kind: [tau(results.rows[drafter, form, kind, temperature, n]) for n in range(count)]
            for kind in (draw, "deterministic")
        }
        rows = [results.rows[drafter, form, draw, temperature, n] for n in range(count)]
        rate = sum(r["accepted"] for r in rows) / max(1, sum(r["drafted"] for r in rows))
        total = sum(r["committed"] for r in rows) / max(1, sum(r["steps"] for r in rows))
        pairs = [a - b for a, b in zip(taus[draw], taus["deterministic"], strict=True) if a and b]
        mean, low, high = interval(pairs)
        beyond = "" if draw == "deterministic" else f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
        print(f"| {temperature:g} | {drafter} | {form} | {draw} | {total:.2f} | {rate:.2f} | {beyond} |")


def tau(row):
    return row["committed"] / row["steps"] if row["steps"] else 0.0


if __name__ == "__main__":
    main()
