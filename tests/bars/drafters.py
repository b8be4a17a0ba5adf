"""Mixtures beside their parts, and `adaptive` beside plain decoding: one process, interleaved.

Every group of prompts (one prompt, or a batch) is answered by every contender in turn, the order rotating. A figure is the
median over groups of the ratio of seconds per token, prefill included; the interval is a bootstrap over groups of that median.
What was measured is appended to --results as JSON lines, and is not measured again.

    python tests/bars/drafters.py mixture --mt-bench FILE --gsm8k FILE
    python tests/bars/drafters.py adaptive --mt-bench FILE --gsm8k FILE --batches 1 2 4 8
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy

import specdec
from specdec.interfaces.parts import BuildTools
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget

PARTS = {
    "eagle": "drafter={use: eagle, head: builtin}",
    "suffix": "drafter={use: suffix}",
}
TRANSLATE = ["Translate this text into French: {}", "Translate the following into German.\n\n{}", "Say this in Spanish: {}"]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def question(row: dict) -> str:
    if "turns" in row:
        return row["turns"][0]
    return row["messages"][0]["content"] if "messages" in row else row["question"]


def prompt_sets(options) -> dict[str, list[str]]:
    """Texts by category."""
    sets = {}
    for row in lines(options.mt_bench):
        sets.setdefault(f"mt-bench {row.get('category', '')}".strip(), []).append(question(row))
    math = [question(row) for row in lines(options.gsm8k)]
    sets["gsm8k"] = math
    sets["translation-like"] = [TRANSLATE[i % len(TRANSLATE)].format(text) for i, text in enumerate(math[::-1])]
    words = sorted({word for text in math for word in text.split()})
    draw = numpy.random.default_rng(0)
    sets["random text"] = [" ".join(draw.choice(words, 40)) for _ in range(options.count)]
    if not options.by_category:
        sets = {**{k: v for k, v in sets.items() if not k.startswith("mt-bench")}, "mt-bench": _spread(sets)}
    return {name: texts[: options.count] for name, texts in sets.items() if not options.sets or name in options.sets}


def _spread(sets):
    """Prompts of all categories in turn."""
    columns = [texts for name, texts in sets.items() if name.startswith("mt-bench")]
    return [texts[i] for i in range(max(map(len, columns))) for texts in columns if i < len(texts)]


def interval(values, seed=0):
    draws = numpy.random.default_rng(seed).choice(values, (4000, len(values)))
    low, high = numpy.quantile(numpy.median(draws, axis=1), [0.025, 0.975])
    return float(numpy.median(values)), float(low), float(high)


class Bench:
    """Seconds per token by (set, batch size, group, contender), kept in a JSON-lines file."""

    def __init__(self, options, contenders) -> None:
        self.options = options
        self.target = BuiltinTarget.build(BuiltinOptions(dtype=options.dtype), BuildTools())
        self.decoders = {
            name: specdec.load(strategy, target=self.target, set=settings) for name, (strategy, settings) in contenders.items()
        }
        self.known = {}
        if options.results.exists():
            for row in lines(options.results):
                self.known[row["set"], row["batch"], row["group"], row["contender"]] = row["seconds_per_token"]

    def ratios(self, title, texts, batch):
        """By contender, plain or not, the seconds per token of every group."""
        prompts = [self.target.codec.chat([{"role": "user", "content": text}]) for text in texts]
        count = batch * self.options.queue
        number = max(len(prompts) // count, self.options.groups)
        groups = [[prompts[(i * count + j) % len(prompts)] for j in range(count)] for i in range(number)]
        names = list(self.decoders)
        for name in names:
            self.decoders[name].generate([prompts[0]], max_new_tokens=4)
        cost = {name: [] for name in names}
        for number, group in enumerate(groups):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                key = (title, batch, number, name)
                if key not in self.known:
                    self.known[key] = self._measure(key, name, group, batch)
                cost[name].append(self.known[key])
        return {name: numpy.array(values) for name, values in cost.items()}

    def _measure(self, key, name, group, batch):
        began = time.perf_counter()
        made = self.decoders[name].generate(group, batch_size=batch, max_new_tokens=self.options.max_new_tokens)
        seconds = (time.perf_counter() - began) / sum(len(answer.tokens) for answer in made)
        tau = float(numpy.mean([answer.tau for answer in made if answer.records] or [1.0]))
        fields = dict(zip(("set", "batch", "group", "contender"), key, strict=True))
        with self.options.results.open("a") as file:
            file.write(json.dumps({**fields, "seconds_per_token": seconds, "tau": tau}) + "\n")
        print(f"  {key}: {seconds * 1e3:.1f} ms/token, tau {tau:.2f}", flush=True)
        return seconds


def mixture(options) -> list[str]:
    """Each mixture against its parts, grown by the same builder."""
    contenders = {"plain": ("plain", ())}
    for strategy in options.mixtures:
        contenders[strategy] = (strategy, ())
        contenders |= {f"{strategy}: {part}": (strategy, (setting,)) for part, setting in PARTS.items()}
    bench, bad = Bench(options, contenders), []
    for title, texts in prompt_sets(options).items():
        cost = bench.ratios(title, texts, 1)
        for strategy in options.mixtures:
            best = min((f"{strategy}: {part}" for part in PARTS), key=lambda name: numpy.median(cost[name]))
            for reference in (best, "plain"):
                median, low, high = interval(cost[reference] / cost[strategy])
                print(f"{title}: {strategy} against {reference}: {median:.2f}x [{low:.2f}, {high:.2f}]", flush=True)
                if reference == best and high < 1:
                    bad.append(f"{title}: {strategy} is slower than its part, {best}")
    return bad


def adaptive(options) -> list[str]:
    """`adaptive` against plain decoding, by category and batch size."""
    contenders = {"plain": ("plain", ()), **{strategy: (strategy, ()) for strategy in options.strategies}}
    bench, bad = Bench(options, contenders), []
    for batch in options.batches:
        for title, texts in prompt_sets(options).items():
            cost = bench.ratios(title, texts, batch)
            for strategy in options.strategies:
                median, low, high = interval(cost["plain"] / cost[strategy])
                print(f"batch {batch}, {title}: {strategy} {median:.2f}x [{low:.2f}, {high:.2f}]", flush=True)
                if high < 0.97:
                    bad.append(f"batch {batch}, {title}: {strategy} is slower than plain decoding")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bar", choices=["mixture", "adaptive"])
    parser.add_argument("--mt-bench", type=Path, required=True, help="or another file of prompts, for tuning")
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--count", type=int, default=16, help="prompts of a set")
    parser.add_argument("--groups", type=int, default=0, help="at least so many of a set, prompts in other company if need be")
    parser.add_argument(
        "--queue", type=int, default=1, help="prompts for each place of a batch, the next beginning when one ends"
    )
    parser.add_argument("--sets", nargs="*", help="only these sets")
    parser.add_argument("--by-category", action="store_true", help="MT-bench category by category")
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--mixtures", nargs="*", default=["mixture", "adaptive"])
    parser.add_argument("--strategies", nargs="*", default=["adaptive"])
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--results", type=Path, default=Path("results/drafters.jsonl"))
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    bad = {"mixture": mixture, "adaptive": adaptive}[options.bar](options)
    print("\n".join(bad) or "bar holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
