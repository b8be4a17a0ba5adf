"""Trees are drawn so that nothing overlaps: beside a recursive twin."""

import itertools
import random

import pytest

from specdec.trace.layout import layout


def recursive(parents):
    children = {n: [c for c, p in enumerate(parents) if p == n] for n in range(len(parents))}
    lines, free = {}, 0

    def place(node):
        nonlocal free
        for child in children[node]:
            place(child)
        if children[node]:
            lines[node] = (lines[children[node][0]] + lines[children[node][-1]]) / 2
        else:
            lines[node], free = float(free), free + 1

    place(0)
    return tuple(lines[n] for n in range(len(parents)))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_recursive_layout_and_no_two_nodes_of_a_column_are_closer_than_a_line(seed):
    source = random.Random(seed)
    parents = [-1, *(source.randrange(node) for node in range(1, 60))]
    placed = layout(parents)
    assert placed.lines == recursive(parents)
    for column in range(placed.num_columns):
        heights = sorted(line for line, at in zip(placed.lines, placed.columns, strict=True) if at == column)
        assert all(b - a >= 1 for a, b in itertools.pairwise(heights))
    assert all(placed.columns[n] == placed.columns[p] + 1 for n, p in enumerate(parents) if n)


def test_a_chain_is_one_line_however_long():
    placed = layout(list(range(-1, 3000)))
    assert (placed.num_lines, placed.num_columns) == (1, 3001)


def test_a_lone_root_has_one_line_and_one_column():
    placed = layout([-1])
    assert (placed.num_lines, placed.num_columns) == (1, 1)
