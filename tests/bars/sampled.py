"""The sampled proof on SmolLM2: planted faults are refuted within 15 minutes, every shipped lossless strategy passes."""

import argparse
import json
import sys
from pathlib import Path

from planted import planted_workshop

from specdec.config.resolver import check, read
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.losslessness.levels import Outcome
from specdec.losslessness.sampled.level import prove_sampled

OTHER_Q = "sampling.draft={temperature: 0.7}"
"""The target drafts for itself at another temperature, so that q is not p."""


def shipped(catalog):
    """The shipped strategies that claim to be lossless and run on the embedded model."""
    plans = {name: check(read(name, catalog), catalog) for name in catalog.library.strategies()}
    return [
        name
        for name, resolved in plans.items()
        if resolved.parts[Kind.TARGET].name == "builtin"
        and resolved.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
    ]


def run(catalog, strategy, settings, seconds, seed):
    resolved = check(read(strategy, catalog, settings=settings), catalog)
    return prove_sampled(resolved, catalog, seconds=seconds, seed=seed, progress=lambda share, words: None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="*", default=None, help="unset: all that are shipped")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="of a right strategy")
    parser.add_argument("--planted-seconds", type=float, default=900, help="at most, of a planted fault")
    parser.add_argument("--no-planted", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results/sampled.jsonl"))
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    catalog, bad = planted_workshop(), 0
    names = shipped(catalog) if options.strategies is None else options.strategies
    jobs = [] if options.no_planted else [(v, 0, options.planted_seconds) for v in ("resampling", "leaking")]
    jobs += [(s, seed, options.seconds) for s in names for seed in range(options.seeds)]
    for name, seed, seconds in jobs:
        fault = name in ("resampling", "leaking")
        strategy = "self-sampled-chain" if fault else name
        settings = [OTHER_Q, f"verifier.use={name}"] if fault else []
        result = run(catalog, strategy, settings, seconds, seed)
        wanted = Outcome.REFUTED if fault else Outcome.PROVED
        enough = result.facts["prefixes"] >= 200
        holds = result.outcome is wanted and enough
        bad += not holds
        with options.results.open("a") as file:
            file.write(json.dumps({"strategy": name, "seed": seed, **result.plain()}) + "\n")
        print(f"{name:20} seed {seed}: {result.outcome.value} in {result.seconds:.0f} s, {result.words}", flush=True)
        for title, words in result.lines:
            print(f"    {title}: {words}", flush=True)
    print("bar holds" if not bad else f"bar does NOT hold: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
