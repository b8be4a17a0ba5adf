import random

import pytest
import torch

from specdec.errors import NumericsError
from specdec.nn.kv_cache import LayerShape
from specdec.nn.path_kv_cache import BLOCK, PathCache

HEADS, DIM, SCRATCH = 2, 3, 4
SHAPE = LayerShape(HEADS, DIM, DIM + 1, torch.float32, torch.device("cpu"))


def keys_of(tokens):
    """Keys and values that tell which tokens they are of."""
    ids = torch.tensor(tokens, dtype=torch.float32)[:, None, None, None]
    return ids.expand(-1, HEADS, 1, DIM).clone(), (ids + 0.5).expand(-1, HEADS, 1, DIM + 1).clone()


def write(kv, row, tokens, length=8):
    """Tokens as further nodes of a row's draft, each below the one before; what the last of them reads."""
    first = len(kv.nodes[row])
    kv.grow(row, first + len(tokens))
    slots = kv.nodes[row][first:]
    paths = [[*kv.paths[row], *kv.nodes[row][: first + n + 1]] for n in range(len(tokens))]
    kv.stage(slots, paths, max(length, *map(len, paths)))
    return [kv.update(layer, *keys_of(tokens)) for layer in range(len(kv.shapes))]


def told(kv, row, layer=0):
    return kv.contents(layer, row)[0][0, :, 0].tolist()


def test_a_path_is_read_in_path_order_and_ends_in_zeros_wherever_its_slots_lie():
    kv = PathCache([SHAPE, None, SHAPE], 1, SCRATCH)
    kv.grow(0, 4)
    slots = kv.nodes[0]
    kv.stage(slots, [[slots[0]], [slots[0], slots[1]], [slots[0], slots[3], slots[2]], [slots[0], slots[3]]], 5)
    keys, values = kv.update(2, *keys_of([10, 11, 12, 13]))
    assert keys.shape == (4, HEADS, 5, DIM)
    assert values.shape == (4, HEADS, 5, DIM + 1)
    assert keys[:, 1, :, 0].tolist() == [[10, 0, 0, 0, 0], [10, 11, 0, 0, 0], [10, 13, 12, 0, 0], [10, 13, 0, 0, 0]]
    assert values[2, 0, :, 0].tolist() == [10.5, 13.5, 12.5, 0, 0]


def test_filling_rows_see_themselves_and_leave_no_trace():
    kv = PathCache([SHAPE], 1, SCRATCH)
    write(kv, 0, [1, 2])
    kv.stage(list(kv.scratch), [[slot] for slot in kv.scratch], 2)
    keys, _ = kv.update(0, *keys_of([7, 8, 9, 6]))
    assert keys[:, 0, :, 0].tolist() == [[7, 0], [8, 0], [9, 0], [6, 0]]
    kv.commit([(0, 1)])
    assert told(kv, 0) == [1, 2]
    kv.check_integrity()


def test_a_commit_keeps_the_path_and_moves_no_slot():
    kv = PathCache([SHAPE], 2, SCRATCH)
    write(kv, 0, [1, 2, 3, 4])
    write(kv, 1, [5])
    kept = [kv.nodes[0][n] for n in (0, 2, 3)]
    kv.commit([(0, 2, 3), ()])
    assert kv.paths == [kept, []]
    assert kv.lengths == [3, 0]
    assert told(kv, 0) == [1, 3, 4]
    assert kv.nodes == [[], []]
    kv.check_integrity()


def test_a_draft_that_has_grown_enough_grows_no_more():
    kv = PathCache([SHAPE], 1, SCRATCH)
    kv.grow(0, 3)
    before = list(kv.nodes[0])
    kv.grow(0, 3)
    kv.grow(0, 1)
    assert kv.nodes[0] == before
    kv.check_integrity()


def test_a_pool_that_grows_keeps_what_is_in_it():
    kv = PathCache([SHAPE], 1, SCRATCH)
    for begin in range(0, 3 * BLOCK, 64):
        write(kv, 0, range(begin, begin + 64))
        kv.commit([range(64)])
    assert told(kv, 0) == list(range(3 * BLOCK))
    kv.check_integrity()


def test_copies_go_their_own_ways_and_share_slots_until_both_are_gone():
    kv = PathCache([SHAPE], 2, SCRATCH)
    write(kv, 0, [1, 2])
    write(kv, 1, [3])
    kv.commit([(0, 1), (0,)])
    write(kv, 0, [9])
    twin = kv.fork([2, 1])
    assert twin.lengths == [2, 2, 1]
    write(twin, 0, [4])
    write(twin, 1, [5])
    twin.commit([(0,), (0,), ()])
    kv.commit([(0,), ()])
    assert [told(twin, row) for row in range(3)] == [[1, 2, 4], [1, 2, 5], [3]]
    assert told(kv, 0) == [1, 2, 9]
    twin.keep([1, 2])
    assert [told(twin, row) for row in range(2)] == [[1, 2, 5], [3]]
    twin.check_integrity()
    kv.check_integrity()


def test_rows_that_join_bring_their_slots_once_and_leave_their_drafts():
    kv, news = PathCache([SHAPE], 1, SCRATCH), PathCache([SHAPE], 1, SCRATCH)
    write(kv, 0, [1, 2])
    kv.commit([(0, 1)])
    write(kv, 0, [8])
    write(news, 0, list(range(3, 3 + BLOCK)))
    news.commit([range(BLOCK)])
    twins = news.fork([2])
    write(twins, 1, [9])
    before = kv._in_use()
    kv.join(twins)
    assert len(kv._in_use() - before) == BLOCK
    write(kv, 2, [5])
    kv.commit([(0,), (), (0,)])
    kv.check_integrity()
    assert [told(kv, row) for row in range(3)] == [[1, 2, 8], list(range(3, 3 + BLOCK)), [*range(3, 3 + BLOCK), 5]]


def test_a_random_life_leaves_what_a_list_of_tokens_would():
    source = random.Random(5)
    kv, lists = PathCache([SHAPE, SHAPE], 4, SCRATCH), [[] for _ in range(4)]
    for step in range(80):
        kept = []
        for row, tokens in enumerate(lists):
            drafted = [1000 * step + 10 * row + n for n in range(source.randint(1, 9))]
            for _, (keys, _) in zip(kv.shapes, write(kv, row, drafted, 64 * (1 + len(tokens) // 32)), strict=True):
                assert keys[-1, 0, : len(tokens) + len(drafted), 0].tolist() == [*tokens, *drafted]
            kept.append([n for n in range(len(drafted)) if source.random() < 0.5])
            tokens += [drafted[n] for n in kept[-1]]
        if step == 40:
            kv.keep([0, 1, 3])
            lists, kept = [lists[row] for row in (0, 1, 3)], [kept[row] for row in (0, 1, 3)]
        kv.commit(kept)
        kv.check_integrity()
    assert [told(kv, row, layer=1) for row in range(3)] == lists


@pytest.mark.parametrize("fault", ["twice", "zeros", "lost"])
def test_a_cache_in_disorder_is_told(fault):
    kv = PathCache([SHAPE], 1, SCRATCH)
    write(kv, 0, [1, 2])
    kv.commit([(0, 1)])
    if fault == "twice":
        kv.paths[0].append(kv.paths[0][0])
    elif fault == "lost":
        kv.paths[0].pop()
    else:
        kv.stage([0], [[0]], 1)
        kv.update(0, *keys_of([3]))
    with pytest.raises(NumericsError):
        kv.check_integrity()
