import random
import statistics
import time

import pytest
import torch

from specdec.nn.tree_mask import RowNodes, additive, chain_mask, tree_mask, tree_positions


def random_row(nodes, length, seed, first=0):
    source = random.Random(seed)
    parents = [-1] + [source.choice([node - 1, source.randrange(node)]) for node in range(1, nodes)]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return RowNodes(length, parents, depths, first)


def lineage(parents, node):
    found = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found


def naive_mask(rows, nodes, slots, window):
    mask = torch.zeros(len(rows), 1, nodes, slots, dtype=torch.bool)
    for r, row in enumerate(rows):
        for line in range(nodes):
            node = row.first + line
            if node >= len(row.parents):
                mask[r, 0, line, row.length + node] = True
                continue
            here = row.length + row.depths[node]
            for slot in range(row.length):
                mask[r, 0, line, slot] = window is None or here - slot < window
            for ancestor in lineage(row.parents, node):
                there = row.length + row.depths[ancestor]
                mask[r, 0, line, row.length + ancestor] = window is None or here - there < window
    return mask


def test_nodes_attend_to_those_found_by_walking_up():
    for seed in range(20):
        row = random_row(1 + seed * 3, 0, seed)
        relation = tree_mask([row], nodes=row.count, slots=row.length + row.count)[0, 0, :, row.length :]
        for node in range(len(row.parents)):
            assert relation[node].nonzero()[:, 0].tolist() == sorted(lineage(row.parents, node))


@pytest.mark.parametrize("window", [None, 1, 3, 8, 40])
def test_the_mask_of_ragged_rows_is_the_naive_one(window):
    for seed in range(12):
        rows = [
            random_row(6 + seed, 13, seed),
            random_row(3, 0, seed + 50),
            random_row(9, 5, seed + 99, first=4),
            random_row(5, 21, seed, first=5),
        ]
        nodes = max(row.count for row in rows)
        slots = max(row.length + row.first for row in rows) + nodes
        got = tree_mask(rows, nodes=nodes, slots=slots, window=window)
        assert torch.equal(got, naive_mask(rows, nodes, slots, window))


def test_a_window_counts_positions_and_not_slots():
    row = RowNodes(4, (-1, 0, 0, 0, 3), (0, 1, 1, 1, 2))
    mask = tree_mask([row], nodes=5, slots=9, window=3)[0, 0]
    assert mask[4].nonzero()[:, 0].tolist() == [4, 7, 8]
    assert mask[3].nonzero()[:, 0].tolist() == [3, 4, 7]


@pytest.mark.parametrize("window", [None, 1, 4, 30])
def test_the_mask_of_consecutive_tokens_is_that_of_a_chain(window):
    starts, counts = [0, 7, 3], [6, 2, 0]
    got = chain_mask(starts, counts, nodes=6, slots=13, window=window)
    rows = []
    for start, count in zip(starts, counts, strict=True):
        size = start + count
        rows.append(RowNodes(0, range(-1, size - 1), range(size), start))
    assert torch.equal(got, naive_mask(rows, 6, 13, window))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_additive_mask_is_zero_where_it_may_look_and_finite_elsewhere(dtype):
    mask = torch.tensor([[True, False]])
    assert additive(mask, dtype, torch.device("cpu")).tolist() == [[0.0, torch.finfo(dtype).min]]


def test_positions_are_prefix_plus_depth_and_padding_stays_at_the_root():
    rows = [RowNodes(10, (-1, 0, 0, 1, 2, 2), (0, 1, 1, 2, 2, 2)), RowNodes(3, (-1, 0), (0, 1), 1)]
    assert tree_positions(rows, 6) == [[10, 11, 11, 12, 12, 12], [4, 3, 3, 3, 3, 3]]


def test_the_mask_of_16_nodes_behind_300_tokens_takes_well_below_half_a_millisecond():
    row = random_row(16, 300, seed=1)
    seconds = []
    for _ in range(40):
        start = time.perf_counter()
        additive(tree_mask([row], nodes=16, slots=316), torch.float32, torch.device("cpu"))
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3e-3, f"median {statistics.median(seconds):.2e}"
