"""Acceptance rates worked out in another way: the best of any lossless verifier, and that of drafts with the target's noise."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any, TypeVar

import networkx

Number = TypeVar("Number", float, Fraction)


def best_acceptance_by_flow(p: Sequence[float], drafts: Mapping[frozenset[int], float]) -> float:
    """`best_acceptance` as a maximum flow: from each draft through its tokens, as much to each as p allows."""
    graph: networkx.DiGraph[Any] = networkx.DiGraph()
    graph.add_node("source")
    graph.add_node("sink")
    for number, (drafted, probability) in enumerate(drafts.items()):
        graph.add_edge("source", ("draft", number), capacity=float(probability))
        for token in drafted:
            graph.add_edge(("draft", number), token, capacity=float(probability))
    for token, probability in enumerate(p):
        if token in graph:
            graph.add_edge(token, "sink", capacity=float(probability))
    return float(networkx.maximum_flow_value(graph, "source", "sink"))


def coupled_acceptance(p: Sequence[Number], q: Sequence[Number], count: int = 1) -> Number:
    """Pr(argmax(log p + G) is among the `count` largest log q + G), one noise G for both.

    As a race of exponential clocks E: the target's token x has the least E/p, and fewer than `count` tokens y have E/q below
    x's. Given E_x = t p_x, the others are independent. For one draft it is the sum over x of 1 / sum_y max(p_y/p_x, q_y/q_x).
    *Source: arXiv 2408.07978 for one draft; several by the same race.*
    """
    zero = p[0] - p[0]
    return sum((_wins(p, q, x, count) for x in range(len(p)) if p[x] and q[x]), start=zero)


def _wins(p: Sequence[Number], q: Sequence[Number], x: int, count: int) -> Number:
    """Pr(the target's token is x, and fewer than `count` others come before x in the drafter's race)."""
    others = [y for y in range(len(p)) if y != x]
    above, below = {y: p[y] / p[x] for y in others}, {y: q[y] / q[x] for y in others}
    faster = [y for y in others if below[y] > above[y]]
    certain = 1 + sum(above[y] for y in others if y not in faster)
    found = p[x] - p[x]
    for size in range(min(count - 1, len(faster)) + 1):
        for ahead in combinations(faster, size):
            behind = certain + sum(below[y] for y in faster if y not in ahead)
            for kept in range(size + 1):
                for late in combinations(ahead, kept):
                    rate = behind + sum(below[y] if y in late else above[y] for y in ahead)
                    found += (-1) ** kept / rate
    return found
