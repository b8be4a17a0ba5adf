import numpy as np
import pytest

from specdec.losslessness.exact.places import words
from specdec.losslessness.sampled.cached_rows import RUN_TOKENS, RowRuns, _tempered
from specdec.losslessness.sampled.evidence import decide
from specdec.losslessness.sampled.long_runs import RealRow


def real_rows(count, width):
    rng = np.random.default_rng(4)
    return [RealRow(*rng.dirichlet(np.full(width, 0.7), size=2)) for _ in range(count)]


def test_every_row_is_reached_and_first_tokens_are_not_counted(on_table):
    runs = RowRuns(on_table("self-sampled-chain"), real_rows(30, 6), seed=1)
    assert runs.num_rows == 30
    assert runs.run(8) == 8 * (RUN_TOKENS - 1)
    assert runs.evidence.tokens == sum(half.sum() for half in runs.evidence.counts) == 8 * (RUN_TOKENS - 1)


def test_the_distribution_of_each_row_is_the_warped_one(on_table):
    runs = RowRuns(on_table("self-sampled-chain", "sampling={temperature: 0.5, top_k: 3}"), real_rows(5, 6), seed=1)
    row = real_rows(5, 6)[2].p
    kept = np.where(row >= np.sort(row)[-3], row, 0) ** 2
    assert runs.evidence.distributions[2] == pytest.approx(kept / kept.sum())


def test_the_drafters_rows_come_as_they_are_flatter_sharper_and_upside_down():
    rows = real_rows(4, 6)
    same, flat, sharp, turned = (row.q for row in _tempered(rows))
    assert same == pytest.approx(rows[0].q)
    assert flat.max() < rows[1].q.max()
    assert sharp.max() > rows[2].q.max()
    assert sorted(turned) == pytest.approx(sorted(rows[3].q))
    assert turned.argmax() == rows[3].q.argmin()


def test_two_runs_with_one_seed_see_the_same_tokens_and_two_batches_do_not(on_table):
    one, other = (RowRuns(on_table("self-wor"), real_rows(20, 6), seed=5) for _ in range(2))
    one.run(8)
    other.run(8)
    first = one.evidence.counts[1].copy()
    assert (first == other.evidence.counts[1]).all()
    one.run(8)
    assert (one.evidence.counts[0] != first).any()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["self-sampled-chain", "self-wor", "self-fixed", "plain"])
def test_right_strategies_pass(on_table, strategy):
    drafter = None if strategy in ("ngram-tree", "plain") else {"use": "tabular", "vocab": 8, "random": {}}
    runs = RowRuns(on_table(strategy, "sampling.temperature=1.0", drafter=drafter), real_rows(60, 8), seed=2)
    for _ in range(2):
        runs.run(24)
    assert decide([runs.evidence]).smallest > 1e-3


@pytest.mark.slow
def test_a_verifier_that_resamples_from_p_is_refuted(on_table):
    runs = RowRuns(on_table("self-sampled-chain", "verifier.use=resampling"), real_rows(60, 8), seed=2)
    for _ in range(2):
        runs.run(60)
    assert decide([runs.evidence]).refuted_by


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("self-wor", "depth 1: siblings 1-3; depth 2: siblings 1-2; depth 3: sibling 1"),
        ("self-iid", "depth 1: siblings 1-3; depth 2: siblings 1-2; depth 3: sibling 1"),
        ("self-dynamic", "depths 1-4: siblings 1-4"),
    ],
)
def test_the_runs_draw_the_strategys_own_shape_and_say_where_drafts_were_tried(on_table, strategy, expected):
    runs = RowRuns(on_table(strategy, "sampling.temperature=1.0"), real_rows(60, 8), seed=2)
    assert runs.places == frozenset()
    runs.run(16)
    assert words(runs.places) == expected
    assert runs.tried[1, 1] > runs.tried[2, 1] > runs.tried[3, 1] > 0
    assert runs.tried[1, 1] >= runs.tried[1, 2] > 0


def test_a_builder_that_counts_the_batch_drafts_as_for_one(on_table):
    """Sixty-four rows at once would leave it nothing that pays."""
    drafter = {"use": "tabular", "vocab": 8, "random": {}}
    runs = RowRuns(on_table("adaptive", "sampling.temperature=1.0", drafter=drafter), real_rows(60, 8), seed=2)
    runs.run(64)
    assert runs.tried[2, 1] > 0
