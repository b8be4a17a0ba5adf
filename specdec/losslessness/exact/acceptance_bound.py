"""What any lossless verifier could accept at best."""

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

from specdec.errors import SpecdecError

Number = TypeVar("Number", float, Fraction)

MOST_TOKENS = 16
"""Vocabulary up to which all subsets are gone through."""


def best_acceptance(p: Sequence[Number], drafts: Mapping[frozenset[int], Number]) -> Number:
    """The largest probability with which a lossless verifier can emit one of the drafted siblings.

    p: by token. drafts: set of drafted tokens -> its probability. The cheapest cut of the transport from drafts to tokens:
    min over H of p(H) + 1 - Pr(drafts within H); exact where the numbers are. Takes V 2^V steps.
    *Source: max-flow min-cut; arXiv 2410.18234 for two i.i.d. drafts.*
    """
    size = len(p)
    if size > MOST_TOKENS:
        raise SpecdecError(f"{size} tokens have too many subsets to go through; at most {MOST_TOKENS} are")
    zero = p[0] - p[0]
    mass, within = [zero] * (1 << size), [zero] * (1 << size)
    for drafted, probability in drafts.items():
        within[_bits(drafted)] += probability
    total = sum(drafts.values(), start=zero)
    for token in range(size):
        bit = 1 << token
        for subset in range(1 << size):
            if subset & bit:
                within[subset] += within[subset ^ bit]
                mass[subset] += p[token]
    return min(mass[subset] + total - within[subset] for subset in range(1 << size))


def _bits(tokens: Collection[int]) -> int:
    return sum(1 << token for token in set(tokens))
