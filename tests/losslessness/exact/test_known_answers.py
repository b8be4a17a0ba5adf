"""Acceptance distributions that an independent enumerator found in fractions."""

import pytest
from tabular_cases import tabular_decoder

from specdec.losslessness.exact.enumeration import prove_step
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass

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


def parts(kind, widths):
    if kind == "top":
        return Fixed, FixedOptions(widths=widths)
    return Sampled, SampledOptions(widths=widths, replacement=kind == "iid")


def test_every_single_step_case_is_covered(known_answers):
    assert set(SINGLE) == set(known_answers["single_step"])
    assert set(SEQUENCE) == set(known_answers["sequence"])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SINGLE)
def test_the_chance_that_some_sibling_is_accepted_is_the_known_one(known_answers, single_case, name, rule):
    kind, verifier = RULES[rule]
    key = "topk_deterministic" if kind == "top" else rule
    for children, entry in known_answers["single_step"][name]["k"].items():
        decoder = tabular_decoder(single_case(name), *parts(kind, [int(children)]), verifier)
        proof = prove_step(decoder, (0, 0), depth=1)
        assert proof.tv <= 1e-12
        assert proof.expected_accepted == pytest.approx(entry[key]["float"], abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", ["2x1", "1x2", "2x2", "3x1"])
@pytest.mark.parametrize("name", SEQUENCE)
def test_the_acceptance_distribution_of_a_two_level_tree_is_the_known_one(known_answers, sequence_case, name, shape, rule):
    kind, verifier = RULES[rule]
    decoder = tabular_decoder(sequence_case(name), *parts(kind, [int(width) for width in shape.split("x")]), verifier)
    check(prove_step(decoder, (0, 0), depth=2), known_answers["sequence"][name]["tree"][shape][rule])


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", SEQUENCE)
def test_the_acceptance_distribution_of_a_sampled_chain_is_the_known_one(known_answers, sequence_case, name, length):
    decoder = tabular_decoder(sequence_case(name), Chain, ChainOptions(length=length, draw="sampled"), ChainRule)
    check(prove_step(decoder, (0, 0), depth=length), known_answers["sequence"][name]["chain"][str(length)]["token"])


def check(proof, entry):
    assert proof.tv <= 1e-12
    assert proof.expected_accepted == pytest.approx(entry["E_tau"]["float"], abs=1e-12)
    known = [level["float"] for level in entry["P_tau_ge"]]
    found = list(proof.accepted_at_least) + [0.0] * (len(known) - len(proof.accepted_at_least))
    assert found == pytest.approx(known, abs=1e-12)
