"""Comparing rules on recorded drafts: the expectation is the enumerated one, the bounds hold, and each fits or says why not."""

import csv
import io
from pathlib import Path

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.errors import SpecError
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.interfaces.parts import build_part
from specdec.losslessness.exact.acceptance_bound import best_acceptance
from specdec.losslessness.exact.enumeration import prove_step
from specdec.losslessness.rules.bounds import chain_bound, transport_bound
from specdec.losslessness.rules.comparison import compare_rules
from specdec.losslessness.rules.expectation import acceptance
from specdec.losslessness.rules.table import csv_text, draw_rules, rule_rows
from specdec.plugins.loading import load_registry
from specdec.sampling.enumeration import outcomes
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw
from specdec.verifiers.block import Block
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.traversal import Traversal

REGISTERED = {name: part.cls for name, part in load_registry(disabled="*").parts[Kind.VERIFIER].items()}
SHIPPED = {name: build_part(cls) for name, cls in REGISTERED.items() if name != "judge"}
"""All but the one whose option has no default."""
RULES = {name: rule for name, rule in SHIPPED.items() if rule.declaration.guarantee is Guarantee.LOSSLESS}


def compared(builder, options, verifier, prompts=4, **sampling):
    case = drawn_case(0, vocab=4)
    decoder = tabular_decoder(case, builder, options, verifier, sampling=SamplingParams(temperature=1.0, **sampling))
    return compare_rules(decoder, RULES, [[n % 4, 1] for n in range(prompts)], max_new_tokens=12, seed=3)


def seen(builder, options, verifier):
    """One draft of a decoder, its rows, and the rule."""
    decoder = tabular_decoder(drawn_case(0, vocab=4), builder, options, verifier)
    found = []
    for _ in decoder.stream([0, 1], max_new_tokens=6, seed=1, step_callback=found.append):
        pass
    return next(info for info in found if info.tree.num_drafted > 1), decoder.verifier


@pytest.mark.parametrize("verifier", [Match, MultiRound, Traversal])
def test_the_expectation_is_that_of_every_outcome_though_undrafted_tokens_are_one(verifier):
    info, rule = seen(Sampled, SampledOptions(widths=(2, 1)), verifier)
    found = acceptance(rule, info.tree, info.target_probs)
    every = outcomes(lambda rng: rule.verify(info.tree, info.target_probs, rng.target).path)
    assert dict(found.paths) == pytest.approx(every, abs=1e-12)
    assert found.reached[0] == pytest.approx(1)
    assert found.expected == pytest.approx(sum(mass * len(path) for path, mass in every.items()))


def test_rules_that_read_the_whole_tree_or_block_accept_more_and_say_so_with_intervals():
    rows = {row.rule: row for row in rule_rows(compared(Sampled, SampledOptions(widths=(2, 2)), MultiRound, prompts=30))}
    assert rows["traversal"].accepted >= rows["multi_round"].accepted > rows["match"].accepted
    assert rows["match"].accepted == pytest.approx(rows["point_mass"].accepted, abs=1e-12)
    assert rows["multi_round"].against_own == 0
    assert rows["match"].against_own + rows["match"].against_own_spread < 0
    assert rows["traversal"].optimum is None
    assert rows["multi_round"].optimum > rows["match"].by_node


def test_a_chain_has_a_bound_that_no_rule_exceeds_on_average():
    found = compared(Chain, ChainOptions(length=3, draw="sampled"), Block, prompts=40)
    bound = sum(found.chain_bounds) / len(found.chain_bounds)
    rows = {row.rule: row.accepted for row in rule_rows(found)}
    assert rows["block"] == pytest.approx(rows["traversal"], abs=1e-12)
    assert rows["block"] >= rows["chain"] - 1e-12
    assert bound + 0.05 >= rows["block"]
    assert set(found.misfits) == set()


@pytest.mark.parametrize("kind", [Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.PAIR, Draw.TOP_THEN_ONE])
def test_the_transport_bound_is_the_cheapest_cut_over_sets_of_small_p_over_q(kind):
    for seed in range(20):
        weights = torch.rand(2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        p, q = (row / row.sum() for row in weights)
        exact = best_acceptance(p.tolist(), _drafts(q.tolist(), kind))
        found = transport_bound(p, q, kind, 2)
        assert found >= exact - 1e-12
        if kind in (Draw.IID, Draw.WITHOUT_REPLACEMENT):
            assert found == pytest.approx(exact, abs=1e-12)


def _drafts(q, kind):
    """Drafted set of two children -> its probability."""
    top = max(range(len(q)), key=lambda token: q[token])
    sets = {}
    for first in range(len(q)):
        for second in range(len(q)):
            struck = 0.0 if kind is Draw.IID else q[first]
            mass = q[first] * q[second] / (1 - struck) if kind is Draw.IID or second != first else 0.0
            if kind is Draw.PAIR:
                mass = q[first] * (second == top) if first != top else q[top] * q[second] / (1 - q[top]) * (second != top)
            elif kind is Draw.TOP_THEN_ONE:
                mass = (first == top) * (second != top) * q[second] / (1 - q[top])
            drafted = frozenset({first, second})
            sets[drafted] = sets.get(drafted, 0.0) + mass
    return sets


def test_one_child_is_accepted_at_most_where_p_and_q_overlap_and_certain_children_have_no_bound():
    p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.3, 0.2, 0.5]).double()
    assert transport_bound(p, q, Draw.WITHOUT_REPLACEMENT, 1) == pytest.approx(0.7)
    assert transport_bound(p, q, Draw.DETERMINISTIC, 2) is None
    assert transport_bound(p, q, Draw.WITHOUT_REPLACEMENT, 3) is None


def test_the_chain_bound_is_the_sum_of_products_that_never_exceed_one():
    info, _ = seen(Chain, ChainOptions(length=3, draw="sampled"), Block)
    rows = [info.target_probs.row(node).dense(4) for node in range(len(info.tree))]
    ratios = [
        float(rows[n - 1][info.tree.tokens[n]] / info.tree.q_of(n - 1)[info.tree.tokens[n]]) for n in range(1, len(info.tree))
    ]
    product, total = 1.0, 0.0
    for ratio in ratios:
        product *= ratio
        total += min(1.0, product)
    assert chain_bound(info.tree, rows) == pytest.approx(total)


def test_a_rule_that_does_not_fit_says_why_and_is_not_run():
    found = compared(Sampled, SampledOptions(widths=(2,)), MultiRound)
    assert "grows a tree" in found.misfits["block"]
    assert "without-replacement draws" in found.misfits["k_seq"]
    assert set(found.tallies) | set(found.misfits) == set(RULES)


@pytest.mark.parametrize(
    ("builder", "options", "verifier", "temperature", "message"),
    [
        (Sampled, SampledOptions(widths=(2,)), MultiRound, 0.0, "temperature 0"),
        (Coupled, CoupledOptions(widths=(2,)), Match, 1.0, "only 'match'"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(builder, options, verifier, temperature, message):
    decoder = tabular_decoder(drawn_case(0), builder, options, verifier, sampling=SamplingParams(temperature=temperature))
    with pytest.raises(SpecError, match=message):
        compare_rules(decoder, RULES, [[0, 1]], max_new_tokens=4, seed=0)


def test_the_expected_acceptance_of_many_steps_is_the_enumerated_one():
    """From one prefix, over many seeds: the mean over drafts comes to what the exact proof says."""
    decoder = tabular_decoder(drawn_case(0, vocab=4), Sampled, SampledOptions(widths=(2,)), MultiRound)
    steps = {}
    for seed in range(300):
        infos = []
        for _ in decoder.stream([0], max_new_tokens=3, seed=seed, step_callback=infos.append):
            pass
        first = infos[0]
        steps.setdefault(first.tree.tokens[0], []).append(acceptance(decoder.verifier, first.tree, first.target_probs).expected)
    root, expected = max(steps.items(), key=lambda item: len(item[1]))
    assert len(expected) > 100
    exact = prove_step(decoder, (0, root), depth=1).expected_accepted
    assert sum(expected) / len(expected) == pytest.approx(exact, abs=0.06)


def test_the_table_is_written_as_csv_and_drawn():
    rows = rule_rows(compared(Sampled, SampledOptions(widths=(2,)), MultiRound))
    read = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert [row["rule"] for row in read] == [row.rule for row in rows]
    assert float(read[0]["accepted"]) == rows[0].accepted
    assert draw_rules(rows, "title", Path("x.png"), 0.5).startswith(b"\x89PNG")
