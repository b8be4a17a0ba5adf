"""tau and n-alpha of the shipped heads, by tree, verifier and temperature: the figures of their cards.

Every row is one line of --results, and a row that is there is not measured again. tau leaves prefills out; its interval is a
bootstrap over prompts of the ratio of sums.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

import specdec
from specdec.bench.bootstrap import ratio_interval
from specdec.bench.prompts import Selection, read_questions
from specdec.interfaces.parts import BuildTools
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget
from specdec.tree_search.acceptance_run import first_turns

CHAIN = {"use": "chain", "length": 5}
STATIC = {"use": "fixed", "file": "eagle-25"}
DYNAMIC = {"use": "dynamic", "width": 8, "depth": 5, "nodes": 24}
ROWS = {
    "chain of 5, match": (CHAIN, "match"),
    "static tree of 25 nodes, match": (STATIC, "match"),
    "dynamic tree of 24 nodes, match": (DYNAMIC, "match"),
    "dynamic tree of 24 nodes, point_mass": (DYNAMIC, "point_mass"),
    "sampled chain of 5, chain": ({**CHAIN, "draw": "sampled"}, "chain"),
    "sampled tree of 25 nodes, multi_round": ({"use": "sampled", "file": "eagle-25"}, "multi_round"),
}
"""Tree and verifier; the last three differ from the others above temperature 0 only."""

WARM = tuple(ROWS)
GREEDY = WARM[:3]
HEADS = ("eagle", "eagle3")


def measure(options, target, head: str, row: str, temperature: float, asked: list[list[int]]) -> dict:
    tree, verifier = ROWS[row]
    spec = {"drafter": {"use": head, "head": "builtin"}, "tree": tree, "verifier": {"use": verifier}}
    decoder = specdec.load({**spec, "sampling": {"temperature": temperature}}, target=target)
    steps, tested, accepted = [], [0] * 5, [0] * 5
    answers = decoder.generate(
        asked, batch_size=options.batch, max_new_tokens=options.max_new_tokens, seed=list(range(len(asked)))
    )
    for made in answers:
        steps.append((sum(record.committed for record in made.records), len(made.records)))
        for record in made.records:
            for level in range(min(5, record.depth)):
                tested[level] += record.accepted >= level
                accepted[level] += record.accepted > level
    return {"steps": steps, "alpha": [a / t if t else None for a, t in zip(accepted, tested, strict=True)]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--results", type=Path, default=Path("results/heads.jsonl"))
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    if options.results.exists():
        known = {tuple(row["key"]): row for row in map(json.loads, options.results.read_text().splitlines())}
    target = BuiltinTarget.build(BuiltinOptions(dtype="bfloat16"), BuildTools())
    print(
        f"{torch.get_num_threads()} threads\n| head | prompts | T | drafts | tau | n-alpha |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for path in options.prompts:
        questions, _ = read_questions([path], Selection(options.count))
        asked = first_turns(questions, target.codec)
        for temperature in options.temperatures:
            for head in options.heads:
                for row in WARM if temperature else GREEDY:
                    key = (path.name, len(asked), options.max_new_tokens, temperature, head, row)
                    if key not in known:
                        known[key] = {"key": key, **measure(options, target, head, row, temperature, asked)}
                        with options.results.open("a") as file:
                            file.write(json.dumps(known[key]) + "\n")
                    tau = ratio_interval(*zip(*known[key]["steps"], strict=True))
                    alpha = " ".join("-" if a is None else f"{a:.2f}".lstrip("0") for a in known[key]["alpha"])
                    where, shown = f"{len(asked)} of {path.stem}", f"{tau.value:.2f} [{tau.low:.2f}, {tau.high:.2f}]"
                    print(
                        f"| {head} | {where} | {temperature:g} | {row} | {shown} | {alpha} |",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
