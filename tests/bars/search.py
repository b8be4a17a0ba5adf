"""The searched tree, its prediction, and what is measured: profile, search, and decode, on questions that were not profiled.

Costs and acceptance come from some questions of the file, the measurement from others in between. Contenders are
interleaved prompt by prompt, the order rotating; seconds are those of decoding, prefill left out on both sides, as the
prediction leaves it out. Passes where the predictions of tau and of speed-up are within 10 % of what is measured, for the
searched tree and on average over all, and where no shipped static tree is faster beyond its interval.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy

import specdec
from specdec.bench.prompts import Selection, read_questions
from specdec.bench.provenance import provenance
from specdec.config.library import library
from specdec.interfaces.parts import BuildTools
from specdec.performance.acceptance_profile import read_acceptance, write_acceptance
from specdec.performance.cost_model import read_costs, write_costs
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget
from specdec.tree_search.acceptance_run import AcceptancePlan, first_turns, measure_acceptance
from specdec.tree_search.cost_run import CostPlan, default_widths, measure_costs
from specdec.tree_search.expected_tokens import expected_tokens
from specdec.tree_search.optimizer import Bounds, predicted, rates_for, replayed_tau, search_tree
from specdec.trees.tree_file import read_tree
from specdec.trees.tree_shape import TreeShape

DRAFTERS = {name: {"use": name, "head": "builtin"} for name in ("eagle", "eagle3")} | {"ngram": {"use": "ngram"}}
SHIPPED = ("chain-3", "chain-5", "wide-4x2x1", "eagle-16", "eagle-25")
TOLERANCE = 0.10


def interval(ratios, seed=0):
    """Mean ratio and its bootstrap 95 % interval."""
    draws = numpy.random.default_rng(seed).choice(ratios, (4000, len(ratios))).mean(axis=1)
    return float(numpy.mean(ratios)), *map(float, numpy.quantile(draws, [0.025, 0.975]))


def split(prompts, count):
    """Prompts to profile, taken evenly from the file, and the others."""
    chosen = {index * len(prompts) // count for index in range(count)}
    return [p for i, p in enumerate(prompts) if i in chosen], [p for i, p in enumerate(prompts) if i not in chosen]


def strategy(drafter, shape, target):
    paths = [list(path) for path in shape.paths]
    return specdec.load({"drafter": DRAFTERS[drafter], "tree": {"use": "fixed", "paths": paths}}, target=target)


def profiles(options, target, prompts):
    """Costs and acceptance, from their files where --reuse finds them."""
    base = options.results.with_suffix("")
    cost, acceptance = Path(f"{base}-cost.yaml"), Path(f"{base}-acceptance.yaml")
    if not (options.reuse and cost.is_file() and acceptance.is_file()):
        decoder = strategy(options.drafter, TreeShape.chain(3), target)
        facts = provenance()
        middle = int(numpy.mean([len(prompt) for prompt in prompts])) + options.max_new_tokens // 2
        plan = CostPlan(default_widths(options.max_width), (max(16, middle // 2), 2 * middle), options.rounds)
        write_costs(cost, measure_costs(decoder, plan, source=options.drafter, provenance=facts))
        print("costs are measured", flush=True)
        looked = AcceptancePlan(max_new_tokens=options.max_new_tokens)
        write_acceptance(acceptance, measure_acceptance(decoder, prompts, looked, source=options.drafter, provenance=facts))
        print("acceptance is measured", flush=True)
    return read_costs(cost), read_acceptance(acceptance)


def measure(contenders, prompts, tokens):
    """By contender and prompt: (seconds of decoding, tokens after the first, steps)."""
    names, rows = list(contenders), {name: [] for name in contenders}
    for decoder in contenders.values():
        decoder.generate([prompts[0]], max_new_tokens=8)
    for i, prompt in enumerate(prompts):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            made = contenders[name].generate([prompt], max_new_tokens=tokens)[0]
            rows[name].append((made.seconds - made.prefill_seconds, len(made.tokens) - 1, len(made.records)))
        print(f"  prompt {i}: " + "  ".join(f"{n} {1e3 * rows[n][-1][0] / rows[n][-1][1]:.1f}" for n in names), flush=True)
    return {name: numpy.array(values) for name, values in rows.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="training questions")
    parser.add_argument("--drafter", choices=DRAFTERS, default="eagle3")
    parser.add_argument("--profile-count", type=int, default=24)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--max-width", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--reuse", action="store_true", help="take the profiles of an earlier run")
    parser.add_argument("--results", type=Path, default=Path("results/search.json"))
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    target = BuiltinTarget.build(BuiltinOptions(dtype=options.dtype), BuildTools())
    questions, _ = read_questions([options.prompts], Selection(options.profile_count + options.count))
    prompts = first_turns(questions, target.codec)
    profiled, measured_on = split(prompts, options.profile_count)
    costs, profile = profiles(options, target, profiled)
    context = int(numpy.mean([len(prompt) for prompt in measured_on])) + options.max_new_tokens // 2
    found = search_tree(profile, costs, Bounds(tuple(range(1, options.max_width + 1)), 8), context=context)
    shapes = {name: read_tree(library().find_tree(name)).shape for name in SHIPPED}
    shapes["searched"] = found.best.shape
    print(f"searched: {found.best.shape.num_nodes} nodes, by level {found.best.shape.level_sizes()}", flush=True)
    contenders = {"plain": specdec.load("plain", target=target)}
    contenders |= {name: strategy(options.drafter, shape, target) for name, shape in shapes.items() if shape.num_nodes}
    rows = measure(contenders, measured_on, options.max_new_tokens)
    report = {"context": context, "paths": found.best.shape.paths, "contenders": {}}
    errors, bad = {}, []
    for name, shape in shapes.items():
        if name not in rows:
            continue
        one = predicted(shape, replayed_tau(profile, shape), costs, context=context, drafted=profile.drafted(shape))
        closed = float(expected_tokens(shape, rates_for(profile, shape, by_rank=False).children))
        seconds, tokens, steps = rows[name].sum(axis=0)
        plain_seconds, plain_tokens, _ = rows["plain"].sum(axis=0)
        speedup, tau = plain_seconds / plain_tokens * tokens / seconds, tokens / steps
        per_prompt = (rows["plain"][:, 0] / rows["plain"][:, 1]) * (rows[name][:, 1] / rows[name][:, 0])
        errors[name] = (one.tokens / tau - 1, one.speedup / speedup - 1)
        report["contenders"][name] = {
            "nodes": shape.num_nodes,
            "tau": {"measured": tau, "replayed": one.tokens, "closed_form": closed},
            "speedup": {"measured": speedup, "predicted": one.speedup, "interval": interval(per_prompt)},
            "step_ms": {"measured": 1e3 * seconds / steps, "predicted": 1e3 * one.step_seconds},
        }
        print(
            f"{name}: tau {tau:.3f}, predicted {one.tokens:.3f} ({errors[name][0]:+.1%}; closed form {closed:.3f}); "
            f"speed-up {speedup:.3f}, predicted {one.speedup:.3f} ({errors[name][1]:+.1%}); "
            f"step {1e3 * seconds / steps:.1f} ms, predicted {1e3 * one.step_seconds:.1f}",
            flush=True,
        )
    if "searched" in errors:
        bad += [f"searched: prediction off by {error:+.1%}" for error in errors["searched"] if abs(error) > TOLERANCE]
        mean = float(numpy.mean([abs(error) for pair in errors.values() for error in pair]))
        report["mean_error"] = mean
        bad += [f"predictions are off by {mean:.1%} on average"] if mean > TOLERANCE else []
        mine = rows["searched"][:, 1] / rows["searched"][:, 0]
        for name in SHIPPED:
            ratio = interval(mine * rows[name][:, 0] / rows[name][:, 1])
            report["contenders"][name]["searched_against_it"] = ratio
            print(f"searched against {name}: {ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]")
            bad += [f"{name} is faster than the searched tree"] if ratio[2] < 1 else []
    else:
        print("nothing beats plain decoding by the prediction")
    options.results.write_text(json.dumps(report, indent=2))
    print("\n".join(bad) or "within the bars")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
