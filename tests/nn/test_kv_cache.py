import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import NumericsError
from specdec.nn.kv_cache import BLOCK, KvCache, LayerShape

CPU = torch.device("cpu")
SHAPES = (
    LayerShape(2, 4, 3, torch.float64, CPU),
    LayerShape(1, 6, 6, torch.float32, CPU),
    None,
    LayerShape(2, 4, 3, torch.float64, CPU),
)
SLOT_BYTES = 2 * (2 * 7 * 8) + 12 * 4


def fresh(shape, rows, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(rows, shape.heads, count, dim, generator=generator).to(shape.dtype)
        for dim in (shape.key_dim, shape.value_dim)
    )


class Twin:
    """The naive cache: one list of tokens per layer and row."""

    def __init__(self, rows):
        self.tokens = {(layer, row): [] for layer in range(4) for row in range(rows)}
        self.drafts = {key: [] for key in self.tokens}

    def write(self, layer, keys, values):
        for row in range(keys.shape[0]):
            for node in range(keys.shape[2]):
                self.drafts[layer, row].append((keys[row, :, node], values[row, :, node]))

    def commit(self, kept):
        for (layer, row), drafts in self.drafts.items():
            if drafts:
                self.tokens[layer, row] += [drafts[offset] for offset in kept[row]]
            drafts.clear()

    def stacked(self, layer, row):
        pairs = self.tokens[layer, row]
        return torch.stack([k for k, _ in pairs], 1), torch.stack([v for _, v in pairs], 1)


def write(cache, twin, count, seed):
    cache.stage(cache.lengths, count)
    for layer, shape in enumerate(SHAPES):
        if shape is not None:
            keys, values = fresh(shape, len(cache.lengths), count, seed + layer)
            cache.update(layer, keys, values)
            twin.write(layer, keys, values)


def assert_equal(cache, twin):
    for layer in (0, 1, 3):
        for row in range(len(cache.lengths)):
            for got, expected in zip(cache.contents(layer, row), twin.stacked(layer, row), strict=True):
                assert torch.equal(got, expected)
    cache.check_integrity()


def test_ragged_rows_hold_what_a_naive_cache_holds_over_many_commits():
    cache, twin = KvCache(SHAPES, 3), Twin(3)
    kept = [[(0, 1, 2), (0,), (0, 1)], [(0, 2, 5), (0, 1, 3), ()], [(0, 4), (), (0, 1, 2, 3)], [(0, 5), (0, 1), (0, 3, 4)]]
    for step, offsets in enumerate(kept * 12):
        write(cache, twin, 6, seed=step * 7)
        cache.commit(offsets)
        twin.commit(offsets)
    assert cache.capacity > BLOCK
    assert_equal(cache, twin)


def test_update_gives_views_of_committed_and_new_tokens_without_a_copy():
    cache = KvCache(SHAPES[:1], 1)
    cache.stage([0], 2)
    keys, values = fresh(SHAPES[0], 1, 2, seed=1)
    seen, _ = cache.update(0, keys, values)
    cache.commit([(0, 1)])
    cache.stage([2], 1)
    more, extra = fresh(SHAPES[0], 1, 1, seed=2)
    again, _ = cache.update(0, more, extra)
    assert seen.data_ptr() == again.data_ptr()
    assert torch.equal(again, torch.cat([keys, more], 2))


def test_an_accepted_path_that_is_contiguous_moves_nothing_and_a_branch_moves_only_its_nodes():
    cache, twin = KvCache(SHAPES, 2), Twin(2)
    write(cache, twin, 5, seed=1)
    before = cache.bytes_moved
    cache.commit([(0, 1, 2), (0, 2, 4)])
    assert cache.bytes_moved - before == 2 * SLOT_BYTES


def test_bytes_per_step_do_not_depend_on_the_prefix_amortised():
    cache, steps = KvCache(SHAPES, 1), []
    for step in range(600):
        before = cache.bytes_moved
        write(cache, Twin(1), 4, seed=step)
        cache.commit([(0, 2)])
        steps.append(cache.bytes_moved - before)
    without_growth = 5 * SLOT_BYTES
    assert sorted(set(steps))[0] == without_growth
    assert sum(count > without_growth for count in steps) <= 8
    assert sum(steps) / len(steps) < 2 * without_growth


def test_rows_leave_in_order_and_forked_rows_share_nothing():
    cache, twin = KvCache(SHAPES, 4), Twin(4)
    write(cache, twin, 3, seed=5)
    offsets = [(0, 1), (0, 1, 2), (0,), (0, 2)]
    cache.commit(offsets)
    twin.commit(offsets)
    cache.keep([1, 3])
    copies = cache.fork([2, 1])
    assert cache.lengths == [3, 2]
    assert copies.lengths == [3, 3, 2]
    for layer in (0, 1, 3):
        for mine, origin in ((0, 1), (1, 1), (2, 3)):
            assert torch.equal(copies.contents(layer, mine)[0], twin.stacked(layer, origin)[0])
            assert torch.equal(copies.contents(layer, mine)[1], twin.stacked(layer, origin)[1])
        assert torch.equal(cache.contents(layer, 1)[0], twin.stacked(layer, 3)[0])
    copies.contents(0, 0)[0].zero_()
    assert torch.equal(cache.contents(0, 0)[0], twin.stacked(0, 1)[0])
    assert torch.equal(copies.contents(0, 1)[0], twin.stacked(0, 1)[0])


@pytest.mark.parametrize("longer", [False, True])
def test_rows_that_join_stand_behind_the_others_where_rows_have_left(longer):
    cache, twin = KvCache(SHAPES, 3), Twin(3)
    write(cache, twin, 3, seed=5)
    offsets = [(0, 1), (0, 1, 2), (0,)]
    cache.commit(offsets)
    twin.commit(offsets)
    cache.keep([1, 2])
    buffers = {group.room[0].data_ptr() for group in cache._groups}
    news, own = KvCache(SHAPES, 2), Twin(2)
    count = 2 * BLOCK if longer else 4
    write(news, own, count, seed=6)
    kept = [range(count), (0, 2)]
    news.commit(kept)
    own.commit(kept)
    news.keep([1])
    cache.join(news)
    assert cache.lengths == [3, 1, 2]
    assert {group.room[0].data_ptr() for group in cache._groups} == buffers
    later, last = KvCache(SHAPES, 1), Twin(1)
    write(later, last, count, seed=7)
    later.commit([range(count)])
    last.commit([range(count)])
    cache.join(later)
    cache.check_integrity()
    assert cache.lengths == [3, 1, 2, count]
    for layer in (0, 1, 3):
        for row, (origin, place) in enumerate(((twin, 1), (twin, 2), (own, 1), (last, 0))):
            for mine, wanted in zip(cache.contents(layer, row), origin.stacked(layer, place), strict=True):
                assert torch.equal(mine, wanted)


@given(st.lists(st.booleans(), min_size=7, max_size=7), st.sampled_from([0, 2, 2 * BLOCK]))
def test_each_of_its_acts_may_be_in_inference_mode_or_not(modes, tokens):
    mode = map(torch.inference_mode, modes)
    with next(mode):
        cache, news, twin, own = KvCache(SHAPES, 3), KvCache(SHAPES, 1), Twin(3), Twin(1)
    for some, naive in ((cache, twin), (news, own)):
        with next(mode):
            if tokens:
                write(some, naive, tokens, seed=tokens)
        some.commit([range(tokens)] * len(some.lengths))
        naive.commit([range(tokens)] * len(some.lengths))
    with next(mode):
        copies = cache.fork([1, 1, 1])
    for some in (cache, copies):
        with next(mode):
            some.keep([0, 2])
    with next(mode):
        copies.join(news)
    assert copies.lengths == [tokens] * 3
    write(copies, Twin(3), 1, seed=1)
    copies.commit([(0,)] * 3)
    for layer in (0, 1, 3) if tokens else ():
        for row, (origin, place) in enumerate(((twin, 0), (twin, 2), (own, 0))):
            for mine, wanted in zip(copies.contents(layer, row), origin.stacked(layer, place), strict=True):
                assert torch.equal(mine[:, :tokens], wanted)


def test_growth_keeps_drafts_that_are_not_committed_yet():
    cache = KvCache(SHAPES[:1], 1)
    keys, values = fresh(SHAPES[0], 1, BLOCK, seed=1)
    cache.stage([0], BLOCK)
    cache.update(0, keys, values)
    more = fresh(SHAPES[0], 1, 1, seed=2)
    cache.stage([BLOCK], 1)
    seen, _ = cache.update(0, *more)
    assert torch.equal(seen, torch.cat([keys, more[0]], 2))


def test_what_was_never_written_is_finite():
    cache = KvCache(SHAPES[:1], 2)
    cache.lengths = [0, 20]
    cache.stage(cache.lengths, 1)
    seen, values = cache.update(0, *fresh(SHAPES[0], 2, 1, seed=1))
    assert seen.isfinite().all()
    assert values.isfinite().all()


def test_lengths_that_do_not_fit_the_buffers_are_found():
    cache = KvCache(SHAPES, 1)
    cache.check_integrity()
    cache.lengths = [3]
    with pytest.raises(NumericsError, match="3 cached tokens"):
        cache.check_integrity()
    cache.lengths = [0, 0]
    with pytest.raises(NumericsError, match="2 rows"):
        cache.check_integrity()
