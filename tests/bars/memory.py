"""Memory in use over a long answer, beside what the caches of keys and values hold. For Linux with glibc.

Every strategy answers in a process of its own. In use is what malloc has given and not got back, Python's objects included;
resident memory is printed beside it, and is higher by what the allocator keeps of freed buffers. Passes where from an eighth
of the answer on no strategy's memory in use grows by more than its caches, at their full capacity, and --slack bytes a token
for the records of the steps and the drafter's own index. The growth is the median of all slopes between two marks (Theil and
Sen), so that a kernel that is made once when a forward of a new size comes up does not count as growth.
"""

import argparse
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

from scipy.stats import theilslopes

STRATEGIES = ("plain", "ngram-tree", "suffix", "eagle-tree", "eagle3", "mixture", "adaptive")
QUESTION = "Write a very long story about a lighthouse keeper, in many chapters."
WARM_UP = "Say the numbers from one to fifty in words, and then explain why the sky is blue."
"""Answered first: kernels for a forward of every size are made when the size comes up, and stay."""


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def in_use() -> int:
    """Bytes that malloc has given and not got back."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = MallInfo
    info = ask()
    return info.uordblks + info.hblkhd


def caches() -> Iterator[int]:
    """Bytes that every cache of keys and values now alive has room for."""
    from specdec.nn.kv_cache import KvCache

    for thing in gc.get_objects():
        if type(thing) is KvCache:
            yield thing.capacity * len(thing.lengths) * sum(shape.slot_bytes for shape in thing.shapes if shape is not None)


def watched(strategy: str, tokens: int, temperature: float) -> list[tuple[int, int, int, int]]:
    """(tokens, bytes in use, bytes of caches, resident bytes) along one answer."""
    import specdec

    decoder = specdec.load(strategy)
    marks, known, step = [], 0, max(1, tokens // 8)
    list(decoder.stream([{"role": "user", "content": WARM_UP}], max_new_tokens=400, ignore_eos=True, seed=2))
    options = {"max_new_tokens": tokens + 64, "ignore_eos": True, "seed": 1, "sampling": {"temperature": temperature}}
    for event in decoder.stream([{"role": "user", "content": QUESTION}], **options):
        known += len(event.tokens)
        if known >= step * (len(marks) + 1):
            gc.collect()
            marks.append((known, in_use(), sum(caches()), resident()))
        if known >= tokens:
            break
    return marks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--slack", type=int, default=6144, help="bytes a token beside caches; a suffix automaton has 4,000")
    options = parser.parse_args()
    os.environ["PYTHONMALLOC"] = "malloc"
    bad = []
    for strategy in options.strategies:
        with get_context("spawn").Pool(1) as pool:
            marks = pool.apply(watched, (strategy, options.tokens, options.temperature))
        (first, before, cached, _), (last, after, more, _) = marks[0], marks[-1]
        beside = theilslopes([used - held for _, used, held, _ in marks], [known for known, *_ in marks]).slope
        grown = f"{(after - before) / 1e6:+.1f} MB, caches {(more - cached) / 1e6:+.1f} MB (to {more / 1e6:.1f})"
        without = " ".join(f"{(used - held) / 1e6:.1f}" for _, used, held, _ in marks)
        print(
            f"{strategy}: from {first} to {last} tokens {grown}; beside them {beside:+.0f} bytes a token; "
            f"at each eighth {without} MB in use without caches, "
            f"resident {' '.join(f'{mark[3] / 1e6:.0f}' for mark in marks)} MB",
            flush=True,
        )
        if beside > options.slack:
            bad.append(f"{strategy}: memory grows beyond the caches")
    print("\n".join(bad) or "bar holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
