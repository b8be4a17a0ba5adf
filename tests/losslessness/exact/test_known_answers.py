"""Acceptance distributions that an independent enumerator found in fractions."""

import pytest
from tabular_cases import tabular_decoder

from specdec.losslessness.exact.enumeration import prove_step
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.pair import Pair, PairOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.verifiers.block import Block
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.gbv import Gbv
from specdec.verifiers.greedy_last import GreedyLast
from specdec.verifiers.k_seq import KSeq
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.optimal_transport import OptimalTransport
from specdec.verifiers.point_mass import PointMass
from specdec.verifiers.spec_hub import SpecHub
from specdec.verifiers.traversal import Traversal

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
RULES = {
    "rrs_with_replacement": ("iid", MultiRound),
    "rrs_without_replacement": ("wor", MultiRound),
    "nss_iid_drafts": ("iid", Match),
    "nss_without_replacement": ("wor", Match),
    "topk_nss": ("top", Match),
    "topk_delta_rrs": ("top", PointMass),
}


SINGLE_RULES = {
    **RULES,
    "ot_optimum_greedy_last": ("top then one", GreedyLast),
    "kseq": ("iid", KSeq),
    "ot_optimum_iid": ("iid", OptimalTransport),
}
TREE_RULES = {**RULES, "greedy_last": ("top then one", GreedyLast), "traversal_without_replacement": ("wor", Traversal)}
CHAIN_RULES = {"token": (ChainRule, KSeq, MultiRound, GreedyLast), "block": (Block, Traversal, Gbv)}
ACCURACY = {"kseq": 1e-9, "ot_optimum_iid": 1e-7}


def parts(kind, widths):
    if kind == "top then one":
        return TopThenOne, TopThenOneOptions(widths=widths)
    if kind == "top":
        return Fixed, FixedOptions(widths=widths)
    return Sampled, SampledOptions(widths=widths, replacement=kind == "iid")


def test_every_single_step_case_is_covered(known_answers):
    assert set(SINGLE) == set(known_answers["single_step"])
    assert set(SEQUENCE) == set(known_answers["sequence"])


@pytest.mark.parametrize("rule", SINGLE_RULES)
@pytest.mark.parametrize("name", SINGLE)
def test_the_chance_that_some_sibling_is_accepted_is_the_known_one(known_answers, single_case, name, rule):
    kind, verifier = SINGLE_RULES[rule]
    key = "topk_deterministic" if kind == "top" else rule
    for children, entry in known_answers["single_step"][name]["k"].items():
        decoder = tabular_decoder(single_case(name), *parts(kind, [int(children)]), verifier)
        proof = prove_step(decoder, (0, 0), depth=1)
        assert proof.tv <= 1e-12
        assert proof.expected_accepted == pytest.approx(entry[key]["float"], abs=ACCURACY.get(rule, 1e-12))


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("shape", ["2x1", "1x2", "2x2", "3x1"])
@pytest.mark.parametrize("name", SEQUENCE)
def test_the_acceptance_distribution_of_a_two_level_tree_is_the_known_one(known_answers, sequence_case, name, shape, rule):
    kind, verifier = TREE_RULES[rule]
    decoder = tabular_decoder(sequence_case(name), *parts(kind, [int(width) for width in shape.split("x")]), verifier)
    check(prove_step(decoder, (0, 0), depth=2), known_answers["sequence"][name]["tree"][shape][rule])


@pytest.mark.parametrize(("kind", "verifier"), [(kind, rule) for kind, rules in CHAIN_RULES.items() for rule in rules])
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", SEQUENCE)
def test_the_acceptance_distribution_of_a_sampled_chain_is_the_known_one(
    known_answers, sequence_case, name, length, kind, verifier
):
    decoder = tabular_decoder(sequence_case(name), Chain, ChainOptions(length=length, draw="sampled"), verifier)
    check(prove_step(decoder, (0, 0), depth=length), known_answers["sequence"][name]["chain"][str(length)][kind])


PAIRS = {"A_generic3": 1.0, "B_sglang10308": 1.0, "C_reversed4": 23 / 30, "D_equal": 1.0}
BEST_OF = {
    "A_generic3": (0.7, 0.94, 0.843),
    "B_sglang10308": (0.9, 0.88, 0.743),
    "C_reversed4": (0.6, 0.79, 0.835),
    "D_equal": (1.0, 0.75, 0.625),
}


@pytest.mark.parametrize("name", PAIRS)
def test_spec_hub_accepts_of_a_pair_what_is_known(single_case, name):
    proof = prove_step(tabular_decoder(single_case(name), Pair, PairOptions(depth=1), SpecHub), (0, 0), depth=1)
    assert proof.tv <= 1e-12
    assert proof.expected_accepted == pytest.approx(PAIRS[name], abs=1e-12)


@pytest.mark.parametrize("name", BEST_OF)
def test_the_best_of_several_chains_is_accepted_as_is_known_and_not_always_more_with_more_of_them(single_case, name):
    for count, known in enumerate(BEST_OF[name], 1):
        proof = prove_step(
            tabular_decoder(single_case(name), Chains, ChainsOptions(count=count, length=1), Gbv), (0, 0), depth=1
        )
        assert proof.tv <= 1e-12
        assert proof.expected_accepted == pytest.approx(known, abs=1e-12)


def test_two_chains_of_two_tokens_are_accepted_as_is_known(sequence_case):
    decoder = tabular_decoder(sequence_case("T1_iid_A"), Chains, ChainsOptions(count=2, length=2), Gbv)
    assert prove_step(decoder, (0, 0), depth=2).expected_accepted == pytest.approx(3391 / 2000, abs=1e-12)


def check(proof, entry):
    assert proof.tv <= 1e-12
    assert proof.expected_accepted == pytest.approx(entry["E_tau"]["float"], abs=1e-12)
    known = [level["float"] for level in entry["P_tau_ge"]]
    found = list(proof.accepted_at_least) + [0.0] * (len(known) - len(proof.accepted_at_least))
    assert found == pytest.approx(known, abs=1e-12)
