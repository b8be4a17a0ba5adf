"""The rules in fractions: every known answer as the very string, and the same distribution as the code that runs."""

from fractions import Fraction
from functools import partial

import pytest
import reference_rules
from acceptance_rates import best_acceptance_by_flow, coupled_acceptance
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tabular_cases import Case, tabular_decoder

from specdec.drafters.tabular import TabularDrafterOptions
from specdec.losslessness.exact.acceptance_bound import best_acceptance
from specdec.losslessness.exact.enumeration import prove_step, step_distribution
from specdec.targets.tabular import TabularTargetOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass

WITH = partial(reference_rules.multi_round, replacement=True)
WITHOUT = partial(reference_rules.multi_round, replacement=False)
RULES = {
    "rrs_with_replacement": (reference_rules.iid, WITH),
    "rrs_without_replacement": (reference_rules.without_replacement, WITHOUT),
    "nss_iid_drafts": (reference_rules.iid, reference_rules.match),
    "nss_without_replacement": (reference_rules.without_replacement, reference_rules.match),
    "topk_nss": (reference_rules.likeliest, reference_rules.match),
    "topk_delta_rrs": (reference_rules.likeliest, reference_rules.point_mass),
}
SINGLE = (
    "A_generic3",
    "B_sglang10308",
    "C_reversed4",
    "D_equal",
    "E_disjoint",
    "F_onehot_p",
    "G_onehot_q",
    "H_zeros5",
    "I_toy2",
)
SEQUENCE = ("T1_iid_A", "T2_context", "T3_toy2", "T5_equal_ctx", "T6_disjoint2", "T7_sharp_q")


def fractions(row):
    return [Fraction(x) for x in row]


def rows_of(entry, distribution):
    root, given, deeper = (entry[f"{distribution}_{part}"] for part in ("root", "given", "deeper"))

    def row(path):
        return fractions(root if not path else given[path[0]] if len(path) == 1 else deeper)

    return row


def constant(row):
    values = fractions(row)
    return lambda path: values


@pytest.mark.parametrize("name", SINGLE)
def test_single_step_acceptance_is_the_known_fraction(known_answers, name):
    entry = known_answers["single_step"][name]
    p, q = constant(entry["p"]), constant(entry["q"])
    for count, known in entry["k"].items():
        for rule, (drafts, reference) in RULES.items():
            distribution = reference_rules.step_distribution(p, q, [int(count)], drafts, reference)
            key = "topk_deterministic" if rule.startswith("topk") else rule
            assert str(reference_rules.accepted_at_least(distribution, 1)[0]) == known[key]["exact"]
            assert reference_rules.total_variation(distribution, p, 2) == 0


@pytest.mark.parametrize("name", SINGLE)
def test_the_best_possible_acceptance_is_the_known_fraction(known_answers, name):
    entry = known_answers["single_step"][name]
    p, q = fractions(entry["p"]), fractions(entry["q"])
    for count, known in entry["k"].items():
        for drafts, key in (
            (reference_rules.iid, "ot_optimum_iid"),
            (reference_rules.without_replacement, "ot_optimum_without_replacement"),
        ):
            sets = drafted_sets(drafts(q, int(count)))
            assert str(best_acceptance(p, sets)) == known[key]["exact"]
            floats = {drafted: float(mass) for drafted, mass in sets.items()}
            by_flow = best_acceptance_by_flow([float(x) for x in p], floats)
            assert by_flow == pytest.approx(known[key]["float"], abs=1e-12)


def drafted_sets(drafts):
    sets = {}
    for drawn, mass in drafts:
        sets[frozenset(drawn)] = sets.get(frozenset(drawn), Fraction(0)) + mass
    return sets


@pytest.mark.parametrize("shape", ["2x1", "1x2", "2x2", "3x1"])
@pytest.mark.parametrize("name", SEQUENCE)
def test_acceptance_in_a_tree_is_the_known_fractions(known_answers, name, shape):
    entry = known_answers["sequence"][name]
    p, q = rows_of(entry, "p"), rows_of(entry, "q")
    for rule, (drafts, reference) in RULES.items():
        distribution = reference_rules.step_distribution(p, q, [int(width) for width in shape.split("x")], drafts, reference)
        known = entry["tree"][shape][rule]
        levels = reference_rules.accepted_at_least(distribution, 2)
        assert str(sum(levels)) == known["E_tau"]["exact"]
        assert [str(level) for level in levels if level] == [level["exact"] for level in known["P_tau_ge"] if level["float"]]


@pytest.mark.parametrize("name", SEQUENCE)
def test_acceptance_along_a_chain_is_the_known_fractions(known_answers, name):
    entry = known_answers["sequence"][name]
    p, q = rows_of(entry, "p"), rows_of(entry, "q")
    for length, known in entry["chain"].items():
        distribution = reference_rules.step_distribution(p, q, [1] * int(length), reference_rules.iid, reference_rules.chain)
        levels = reference_rules.accepted_at_least(distribution, int(length))
        assert str(sum(levels)) == known["token"]["E_tau"]["exact"]
        assert [str(level) for level in levels if level] == [x["exact"] for x in known["token"]["P_tau_ge"] if x["float"]]
        assert reference_rules.total_variation(distribution, p, int(length) + 1) == 0


VOCAB = 3
CODE = {
    "rrs_with_replacement": (lambda widths: (Sampled, SampledOptions(widths=widths, replacement=True)), MultiRound),
    "rrs_without_replacement": (lambda widths: (Sampled, SampledOptions(widths=widths)), MultiRound),
    "nss_iid_drafts": (lambda widths: (Sampled, SampledOptions(widths=widths, replacement=True)), Match),
    "nss_without_replacement": (lambda widths: (Sampled, SampledOptions(widths=widths)), Match),
    "topk_nss": (lambda widths: (Fixed, FixedOptions(widths=widths)), Match),
    "topk_delta_rrs": (lambda widths: (Fixed, FixedOptions(widths=widths)), PointMass),
    "chain": (lambda widths: (Chain, ChainOptions(length=len(widths), draw="sampled")), ChainRule),
}
EVERY = {**RULES, "chain": (reference_rules.iid, reference_rules.chain)}


@st.composite
def distributions(draw):
    """A row: any small fractions, with zeros, ties and certainty among them."""
    weights = draw(st.lists(st.integers(0, 6), min_size=VOCAB, max_size=VOCAB).filter(any))
    return [Fraction(weight, sum(weights)) for weight in weights]


tables = st.lists(distributions(), min_size=1 + VOCAB, max_size=1 + VOCAB)
"""The root's row, and one below each of its children."""

THIRD, CERTAIN = [Fraction(1, 3)] * 3, [Fraction(0), Fraction(1), Fraction(0)]
LOW, HIGH = [Fraction(1), Fraction(0), Fraction(0)], [Fraction(0), Fraction(1, 4), Fraction(3, 4)]
DEPTHS = [[Fraction(n, 6), Fraction(3, 6), Fraction(3 - n, 6)] for n in range(4)]


def case_of(p, q):
    def rows(table):
        named = {"": table[0], **{str(token): table[1 + token] for token in range(VOCAB)}, "*": THIRD}
        return {key: [str(x) for x in row] for key, row in named.items()}

    return Case(
        "drawn",
        TabularTargetOptions(vocab=VOCAB, rows=rows(p), start=2),
        TabularDrafterOptions(vocab=VOCAB, rows=rows(q), start=2),
    )


def lookup(table):
    return lambda path: THIRD if len(path) > 1 else table[0] if not path else table[1 + path[0]]


@pytest.mark.slow
@pytest.mark.parametrize("rule", EVERY)
@settings(max_examples=12, derandomize=True)
@given(p=tables, q=tables)
@example(p=[THIRD] * 4, q=[THIRD] * 4)
@example(p=[LOW] * 4, q=[HIGH] * 4)
@example(p=[CERTAIN] * 4, q=[THIRD] * 4)
@example(p=[THIRD] * 4, q=[CERTAIN] * 4)
@example(p=DEPTHS, q=DEPTHS[::-1])
def test_the_code_has_the_distribution_of_its_reference_and_both_have_the_target_s(rule, p, q):
    drafts, reference = EVERY[rule]
    parts, verifier = CODE[rule]
    widths = (1, 1) if rule == "chain" else (2,) if rule.startswith("rrs") else (2, 1)
    decoder = tabular_decoder(case_of(p, q), *parts(widths), verifier)
    wanted = reference_rules.step_distribution(lookup(p), lookup(q), widths, drafts, reference)
    found = step_distribution(decoder, (0, 0), depth=len(widths))
    assert {(o.tokens, o.accepted[0]): mass for o, mass in found.items()} == pytest.approx(
        {key: float(mass) for key, mass in wanted.items()}, abs=1e-12
    )
    assert reference_rules.total_variation(wanted, lookup(p), 3) == 0


@settings(max_examples=25, derandomize=True)
@given(p=distributions(), q=distributions(), count=st.integers(1, 3))
def test_no_rule_accepts_more_than_the_transport_bound(p, q, count):
    for drafts, rules in (
        (reference_rules.iid, (WITH, reference_rules.match)),
        (reference_rules.without_replacement, (WITHOUT, reference_rules.match)),
        (reference_rules.likeliest, (reference_rules.point_mass, reference_rules.match)),
    ):
        sets = drafted_sets(drafts(q, count))
        best = best_acceptance(p, sets)
        assert float(best) == pytest.approx(best_acceptance_by_flow([float(x) for x in p], sets), abs=1e-9)
        for rule in rules:
            distribution = reference_rules.step_distribution(lambda _: p, lambda _: q, [count], drafts, rule)
            assert reference_rules.accepted_at_least(distribution, 1)[0] <= best
    assert best_acceptance(p, drafted_sets(reference_rules.iid(q, 1))) == sum(map(min, p, q))


@settings(max_examples=25, derandomize=True)
@given(p=distributions(), q=distributions(), count=st.integers(1, 3))
def test_coupled_drafts_are_accepted_within_their_bounds(p, q, count):
    found = coupled_acceptance(p, q, count)
    distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert found <= best_acceptance(p, drafted_sets(reference_rules.without_replacement(q, count)))
    assert found >= coupled_acceptance(p, q)
    assert coupled_acceptance(p, q) >= (1 - distance) / (1 + distance)
    assert coupled_acceptance(p, p) == 1


def test_a_coupled_draft_on_case_a_is_accepted_by_the_known_amount():
    p, q = fractions(["1/2", "3/10", "1/5"]), fractions(["3/10", "1/5", "1/2"])
    assert float(coupled_acceptance(p, q)) == pytest.approx(0.6935, abs=5e-5)
    assert coupled_acceptance(p, q, 3) == 1


def test_a_step_states_its_acceptance_beside_the_best_possible(known_answers, single_case):
    for name in SINGLE:
        proof = prove_step(tabular_decoder(single_case(name), Sampled, SampledOptions(widths=[2]), MultiRound), (0, 0), depth=1)
        known = known_answers["single_step"][name]["k"]["2"]
        assert proof.best_first_accepted == pytest.approx(known["ot_optimum_without_replacement"]["float"], abs=1e-12)
        assert proof.expected_accepted <= proof.best_first_accepted + 1e-12
