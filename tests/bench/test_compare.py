"""Two result files: compared only where they are comparable."""

import pytest

from specdec.bench.bootstrap import Estimate
from specdec.bench.compare import compare_results, overlap
from specdec.bench.compare_table import comparison_lines
from specdec.bench.measurements import Cell
from specdec.errors import SpecError

BEFORE = {"plain": [(1, 10), (1, 10), (1, 10)], "tree": [(0.5, 10), (0.5, 10), (0.4, 10)]}
AFTER = {"plain": [(1, 10), (1, 10), (1, 10)], "tree": [(0.25, 10), (0.25, 10), (0.2, 10)], "new": [(1, 10)] * 3}
PLAN = {"prompts": ["a"], "selection": {}, "settings": {"max_new_tokens": 12}}


def test_the_second_is_measured_against_the_first_question_by_question(results_of):
    found = compare_results(results_of(BEFORE), results_of(AFTER))
    tree = next(pair for pair in found.pairs if pair.contender == "tree")
    assert (tree.faster.value, tree.overlap, tree.num_different, tree.num_compared) == (2.0, False, 0, 3)
    assert [pair.contender for pair in found.pairs] == ["plain", "tree"]
    assert found.notes == ("new: only in the second file",)
    assert any(line.count("2.00x") and "NO" in line for text in comparison_lines(found) for line in text.splitlines())


def test_what_differs_in_machine_versions_and_specs_is_said(results_of):
    first = results_of(BEFORE, provenance={"cpu": "a", "versions": {"torch": "1"}, "started": "then"}, specs={"tree": {"n": 1}})
    second = results_of(BEFORE, provenance={"cpu": "a", "versions": {"torch": "2"}, "started": "now"}, specs={"tree": {"n": 2}})
    assert compare_results(first, second).notes == ("versions.torch: 1 there, 2 here", "tree.n: 1 there, 2 here")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompts": ["b"]}, "prompts[0]: a there, b here"),
        ({"prompts": []}, 'prompts: ["a"] there, [] here'),
        ({"settings": {"max_new_tokens": 13}}, "settings.max_new_tokens: 12 there, 13 here"),
    ],
)
def test_other_prompts_or_caps_are_not_compared(results_of, change, words):
    with pytest.raises(SpecError, match="different set-ups") as error:
        compare_results(results_of(BEFORE, plan=PLAN), results_of(AFTER, plan={**PLAN, **change}))
    assert words in str(error.value)


def test_results_of_other_settings_have_nothing_to_compare(results_of):
    with pytest.raises(SpecError, match="no contender in a common setting"):
        compare_results(results_of(BEFORE), results_of(AFTER, cell=Cell(None, 1.0, 1)))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Estimate(1, 0.9, 1.1), Estimate(1.2, 1.05, 1.3), True),
        (Estimate(1, 0.9, 1.1), Estimate(1.2, 1.15, 1.3), False),
        (Estimate(1), Estimate(1.2, 1.15, 1.3), None),
        (None, Estimate(1.2, 1.15, 1.3), None),
    ],
)
def test_intervals_overlap_where_they_have_a_point_in_common(first, second, expected):
    assert overlap(first, second) is expected
