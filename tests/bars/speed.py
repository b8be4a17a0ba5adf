"""The n-gram strategies beside plain decoding, `transformers.generate` and its prompt lookup: one process, interleaved.

Every prompt is answered by every contender in turn, the order rotating from prompt to prompt. A figure is the median over
prompts of the ratio of seconds per token; the interval is a bootstrap over prompts of that median.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM

import specdec
from specdec.interfaces.parts import BuildTools
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget
from specdec.targets.gguf_cache import unpacked_folder

EDITS = [
    "Repeat the following text word for word.\n\n{}",
    "Copy this text exactly, but write the first word in capital letters.\n\n{}",
    "Correct any spelling mistakes in this text and give me the whole text back.\n\n{}",
]
LOOKUPS = (3, 5, 10)


def questions(path: Path, count: int) -> list[str]:
    return [json.loads(line)["turns"][0] for line in path.read_text().splitlines()[:count]]


def hugging_face(model, ids, tokens, lookup):
    inputs = torch.tensor([ids])
    more = {} if lookup is None else {"prompt_lookup_num_tokens": lookup}
    out = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=tokens, do_sample=False, pad_token_id=2, **more
    )
    return out.shape[1] - len(ids)


def interval(values, seed=0):
    """Median and its bootstrap 95 % interval."""
    draws = numpy.random.default_rng(seed).choice(values, (4000, len(values)))
    low, high = numpy.quantile(numpy.median(draws, axis=1), [0.025, 0.975])
    return float(numpy.median(values)), float(low), float(high)


def measure(contenders, prompts, tokens):
    seconds = {name: [] for name in contenders}
    for run in contenders.values():
        run(prompts[0], 8)
    names = list(contenders)
    for i, prompt in enumerate(prompts):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            began = time.perf_counter()
            made = contenders[name](prompt, tokens)
            seconds[name].append((time.perf_counter() - began) / made)
        print(f"  prompt {i}: " + "  ".join(f"{n} {seconds[n][-1] * 1e3:.1f}" for n in names) + "  ms/token", flush=True)
    return {name: numpy.array(values) for name, values in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mt-bench", type=Path, required=True)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--strategies", nargs="*", default=["ngram-chain", "ngram-tree"])
    parser.add_argument("--results", type=Path, default=Path("results/speed.json"))
    options = parser.parse_args()
    target = BuiltinTarget.build(BuiltinOptions(dtype=options.dtype), BuildTools())
    model = AutoModelForCausalLM.from_pretrained(unpacked_folder(), dtype=getattr(torch, options.dtype)).eval()
    texts = [
        json.loads(line)["reference"][0].split("####")[0] for line in options.gsm8k.read_text().splitlines()[-options.count :]
    ]
    sets = {
        "gsm8k": questions(options.gsm8k, options.count),
        "repeat-or-edit": [EDITS[i % len(EDITS)].format(text) for i, text in enumerate(texts)],
        "mt-bench": questions(options.mt_bench, options.count),
    }

    def ours(name):
        decoder = specdec.load(name, target=target)
        return lambda ids, tokens: len(decoder.generate([ids], max_new_tokens=tokens)[0].tokens)

    contenders = {name: ours(name) for name in ("plain", *options.strategies)}
    contenders["transformers"] = lambda ids, tokens: hugging_face(model, ids, tokens, None)
    for lookup in LOOKUPS:
        contenders[f"lookup-{lookup}"] = lambda ids, tokens, n=lookup: hugging_face(model, ids, tokens, n)
    report, bad = {}, []
    for title, asked in sets.items():
        print(title, flush=True)
        prompts = [target.codec.chat([{"role": "user", "content": text}]) for text in asked]
        cost = measure(contenders, prompts, options.max_new_tokens)
        report[title] = {name: values.tolist() for name, values in cost.items()}
        best = min((f"lookup-{n}" for n in LOOKUPS), key=lambda name: numpy.median(cost[name]))
        for name in options.strategies:
            against = {ref: interval(cost[ref] / cost[name]) for ref in ("plain", "transformers", best)}
            for ref, (median, low, high) in against.items():
                print(f"  {name} against {ref}: {median:.2f}x  [{low:.2f}, {high:.2f}]", flush=True)
            if against["plain"][2] < 0.97:
                bad.append(f"{title}: {name} is slower than plain decoding")
            if title != "mt-bench" and against[best][2] < 1:
                bad.append(f"{title}: {name} is slower than transformers' {best}")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(report))
    print("\n".join(bad) or "bar holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
