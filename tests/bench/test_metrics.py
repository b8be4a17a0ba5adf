"""Figures of results whose answers are known."""

from dataclasses import replace

import pytest

from specdec.bench.measurements import Counts
from specdec.bench.metrics import draft_figures, summaries


def by_name(results, **options):
    return {s.contender: s for s in summaries(results, results.cells[0], **options)}


def test_speed_up_is_the_median_over_groups_of_the_ratio_of_seconds_per_token(results_of):
    found = by_name(results_of({"plain": [(10, 10), (10, 20), (10, 40)], "fast": [(5, 10), (10, 40), (2.5, 40)]}))
    fast = found["fast"]
    assert fast.speedup.value == 2.0
    assert (fast.speedup.low, fast.speedup.high) == (2.0, 4.0)
    assert found["plain"].speedup.value == 1.0
    assert fast.tokens_per_second == pytest.approx(90 / 17.5)


def test_the_speed_up_of_totals_weighs_groups_by_their_seconds(results_of):
    found = by_name(results_of({"plain": [(1, 10), (9, 10)], "fast": [(1, 10), (3, 10)]}))
    assert found["fast"].speedup.value == 2.0
    assert found["fast"].speedup_of_totals.value == 2.5


def test_a_longer_answer_is_no_slower_one(results_of):
    found = by_name(results_of({"plain": [(1, 10)], "wordy": [(2, 20)]}))
    assert found["wordy"].speedup.value == found["wordy"].speedup_of_totals.value == 1.0


def test_groups_that_only_one_has_answered_are_no_pairs(results_of):
    found = by_name(results_of({"plain": [(1, 10), (2, 10)], "late": [(0.5, 10)]}))
    assert found["late"].speedup.value == 2.0
    assert found["late"].num_groups == 1


def test_an_answer_without_a_token_is_no_pair(results_of):
    found = by_name(results_of({"plain": [(1, 0), (2, 10)], "other": [(1, 0), (1, 10)]}))
    assert found["other"].speedup.value == 2.0


def test_categories_are_summed_up_apart(results_of):
    results = results_of({"plain": [(1, 10), (1, 10)], "fast": [(0.5, 10), (0.25, 10)]}, categories=["a", "b"])
    assert by_name(results, category="a")["fast"].speedup.value == 2.0
    assert by_name(results, category="b")["fast"].speedup.value == 4.0


def test_answers_with_other_ids_are_counted_at_temperature_zero(results_of):
    results = results_of({"plain": [(1, [1, 2]), (1, [3])], "same": [(1, [1, 2]), (1, [3])], "not": [(1, [1, 2]), (1, [4])]})
    found = by_name(results)
    assert (found["same"].num_different, found["same"].num_compared) == (0, 2)
    assert (found["not"].num_different, found["not"].num_compared) == (1, 2)


def test_above_temperature_zero_only_match_is_expected_to_give_the_same_ids(results_of):
    from specdec.bench.measurements import Cell

    specs = {name: {"spec": {"verifier": {"use": name}}} for name in ("match", "chain")}
    times = {"plain": [(1, [1])], "match": [(1, [1])], "chain": [(1, [2])], "peer": [(1, [2])]}
    found = by_name(results_of(times, cell=Cell(None, 1.0, 1), specs=specs))
    assert [found[name].num_compared for name in ("match", "chain", "peer")] == [1, 0, 0]


def test_other_contenders_may_be_the_measure(results_of):
    found = by_name(results_of({"plain": [(1, 10)], "x": [(2, 10)], "fast": [(0.5, 10)]}), versus=("x", "gone"))
    assert {name: e.value for name, e in found["fast"].versus.items()} == {"x": 4.0}


def test_draft_figures_are_those_of_the_sums():
    first = Counts(4, 10, 16, 6, (4, 3), (3, 3), (7, 7), (5, 1))
    second = Counts(1, 1, 4, 0, (1,), (0,), (1,), (0,))
    found = draft_figures([first, second])
    assert found.tau == 11 / 5
    assert found.draft_acceptance_rate == 6 / 20
    assert found.acceptance_by_depth == (3 / 5, 1.0)
    assert found.tested_by_depth == (5, 3)
    assert found.acceptance_by_rank == (5 / 8, 1 / 7)


def test_without_drafts_there_is_no_rate():
    found = draft_figures([Counts(3, 3)])
    assert (found.tau, found.draft_acceptance_rate, found.acceptance_by_depth) == (1.0, None, ())
    assert draft_figures([Counts(0, 0)]).tau is None
    assert draft_figures([]) is None


def test_phases_memory_and_the_first_token_are_those_of_the_measurements_that_have_them(results_of):
    """Two of four have phases, whose shares are of their own seconds; the peak is the largest, the first token the median."""
    results = results_of({"plain": [(2, 10), (2, 10), (4, 10), (8, 10)]})
    more = [
        {"phases": {"draft": 1.0, "score": 1.0}, "peak_bytes": 500, "first_token_seconds": 0.1},
        {"phases": {"draft": 0.5, "score": 1.5}, "peak_bytes": 900, "first_token_seconds": 0.2},
        {"peak_bytes": 100, "first_token_seconds": 0.9},
        {"first_token_seconds": None},
    ]
    measured = tuple(replace(one, **fields) for one, fields in zip(results.measurements, more, strict=True))
    (plain,) = summaries(replace(results, measurements=measured), results.cells[0])
    assert plain.phases == {"draft": 1.5 / 4, "score": 2.5 / 4}
    assert plain.peak_bytes == 900
    assert plain.first_token_seconds == 0.2


def test_turns_and_questions_that_are_answered_together_are_one_group_of_many_answers(results_of):
    """Two questions of two turns; of the four answers one has other ids than plain decoding's, in its second turn only."""
    results = results_of({"plain": [(4, 2)], "fast": [(2, 2)]})

    def answered(one, turn, *ids):
        answers = (replace(one.answers[0], question=str(n), turn=turn, tokens=own) for n, own in enumerate(ids))
        return replace(one, turn=turn, answers=tuple(answers))

    plain, fast = results.measurements
    measured = (
        answered(plain, 0, (1, 2), (3, 4)),
        answered(plain, 1, (5, 6), (7, 8)),
        answered(fast, 0, (1, 2), (3, 4)),
        answered(fast, 1, (5, 6), (7, 9)),
    )
    found = by_name(replace(results, measurements=measured))["fast"]
    assert (found.num_groups, found.num_answers, found.num_tokens, found.seconds) == (1, 4, 8, 4)
    assert (found.num_compared, found.num_different) == (4, 1)
    assert (found.tokens_per_second, found.speedup.value) == (2.0, 2.0)
