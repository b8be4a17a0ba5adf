import time
from dataclasses import replace

import pytest

from specdec.errors import SpecError
from specdec.interfaces.parts import DraftSession
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_search.cost_run import BATCH, BATCH_STEPS, DRAFT_WIDTHS, PLAIN_STEPS, CostPlan, default_widths, measure_costs
from specdec.tree_search.step_timer import Samples, fresh_token, steadied
from specdec.verifiers.match import Match

PLAN = CostPlan(widths=(1, 2, 3, 5, 9), contexts=(4, 20), rounds=2)


def test_default_widths_are_every_one_up_to_eight_and_then_sparser():
    assert default_widths(48) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48)
    assert default_widths(1) == (1,)
    assert default_widths(9) == (1, 2, 3, 4, 5, 6, 7, 8, 9)


@pytest.fixture
def measured(table, parts_of, compose, watched):
    """The costs of a tabular target, the target as it was called, and the calls of `on_round`."""
    rounds = []
    target = watched(table(40, seed=1))
    decoder = compose(target, parts_of(Chain, ChainOptions(length=2), Match), "mixed")
    costs = measure_costs(decoder, PLAN, source="table", provenance={"x": 1}, on_round=lambda: rounds.append(1))
    return costs, target, rounds


def test_every_width_is_scored_as_often_at_every_context_and_a_round_warms_up(measured):
    costs, target, rounds = measured
    assert len(rounds) == PLAN.rounds + 1
    sizes = [len(tree) for trees in target.trees for tree in trees]
    in_batches = {2: (PLAN.rounds + 1) * (1 + BATCH) * (1 + BATCH_STEPS)}
    for width in PLAN.widths[1:]:
        assert sizes.count(width) - in_batches.get(width, 0) == len(PLAN.contexts) * (PLAN.rounds + 1)
    assert sizes.count(1) >= len(PLAN.contexts) * (PLAN.rounds + 1) * PLAIN_STEPS
    assert costs.widths == PLAN.widths
    assert costs.contexts == PLAN.contexts
    assert min(map(min, costs.forward_seconds)) > 0


def test_a_round_stays_near_its_context(measured):
    _, target, _ = measured
    for trees in target.trees:
        assert min(abs(tree.root_position - context) for tree in trees for context in PLAN.contexts) <= 30


def test_the_drafter_is_timed_by_level_and_the_file_says_from_what(measured):
    costs, _, _ = measured
    assert costs.drafter.name == "tabular"
    assert costs.drafter.widths == DRAFT_WIDTHS
    assert costs.drafter.first_seconds > 0
    assert costs.overhead_seconds > 0
    assert costs.provenance == {"x": 1, "rounds": PLAN.rounds}


def test_the_text_never_repeats_itself_whatever_the_target_says(measured):
    _, target, _ = measured
    drafted = [tree for trees in target.trees for tree in trees if len(tree) > 1 and tree.root_position not in PLAN.contexts]
    assert len(drafted) > 50
    assert all(tree.tokens[0] == fresh_token(tree.root_position, 40) for tree in drafted)
    assert len({fresh_token(position, 40) for position in range(40)}) == 40
    assert sorted(fresh_token(position, 49152) for position in range(49152)) == list(range(49152))


def test_each_further_sequence_of_a_batch_is_timed(table, parts_of, compose, monkeypatch):
    decoder = compose(table(40, seed=1), parts_of(Chain, ChainOptions(length=2), Match), "mixed")
    opened = decoder.drafter.open

    class Slow(DraftSession):
        def __init__(self, inner):
            self.inner = inner

        def expand(self, frontiers):
            time.sleep(0.004 * len(frontiers))
            return self.inner.expand(frontiers)

        def observe(self, committed, scored):
            self.inner.observe(committed, scored)

        def keep(self, rows):
            self.inner.keep(rows)

        def join(self, other):
            self.inner.join(other.inner)

    monkeypatch.setattr(decoder.drafter, "open", lambda starts: Slow(opened(starts)))
    costs = measure_costs(decoder, PLAN, source="table", provenance={})
    assert costs.drafter.row_seconds == pytest.approx(0.004, rel=0.4)


def test_a_short_profile_knows_what_a_level_of_one_node_costs(table, parts_of, compose):
    decoder = compose(table(40, seed=1), parts_of(Chain, ChainOptions(length=2), Match), "mixed")
    costs = measure_costs(decoder, CostPlan((1, 2), (4,), rounds=1), source="x", provenance={})
    assert costs.drafter.widths[0] == 1


def test_a_target_without_trees_is_measured_in_chains(table, parts_of, compose, watched):
    class ChainsOnly(watched):
        @property
        def facts(self):
            return replace(self.inner.facts, trees=False)

    target = ChainsOnly(table(40, seed=1))
    measure_costs(compose(target, parts_of(Chain, ChainOptions(), Match)), PLAN, source="x", provenance={})
    assert all(tree.is_chain for trees in target.trees for tree in trees)


def test_a_round_that_was_slow_as_a_whole_changes_nothing():
    def a_round(slowness):
        samples = Samples()
        for width, seconds in ((1, 0.01), (2, 0.012), (4, 0.02)):
            samples.forward[64, width].append(seconds * slowness)
        samples.overhead.append(0.001 * slowness)
        samples.first_level.append(0.002 * slowness)
        return samples

    together = steadied([a_round(slowness) for slowness in (1.0, 3.0, 1.0, 1.0, 7.0)])
    assert together.forward[64, 2] == pytest.approx([0.012] * 5)
    assert together.overhead == pytest.approx([0.001] * 5)
    assert together.first_level == pytest.approx([0.002] * 5)


def test_a_context_or_width_that_does_not_fit_is_refused(table, parts_of, compose):
    decoder = compose(table(8, max_positions=30), parts_of(Chain, ChainOptions(), Match))
    with pytest.raises(SpecError, match="context 20: a round needs up to"):
        measure_costs(decoder, PLAN, source="x", provenance={})
    with pytest.raises(SpecError, match="--max-width 2 would work"):
        measure_costs(decoder, CostPlan((1,), (1,)), source="x", provenance={})
    with pytest.raises(SpecError, match="needs the width 1"):
        measure_costs(decoder, CostPlan((2,), (1,)), source="x", provenance={})
