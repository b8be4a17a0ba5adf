"""Every allowed builder x verifier x draw emits the target's distribution; every forbidden pair is refused."""

from dataclasses import replace

import pytest
from tabular_cases import drawn_case, tabular_decoder

from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.compatibility import NamedDeclaration, mismatches
from specdec.losslessness.exact.enumeration import prove_step
from specdec.losslessness.exact.runs import prove_run
from specdec.sampling.params import SamplingParams, TruncationParams
from specdec.tree_builders.adaptive import Adaptive, AdaptiveOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.delayed import Delayed, DelayedOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
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

VERIFIERS = (Match, PointMass, ChainRule, Block, MultiRound, KSeq, OptimalTransport, Traversal, Gbv, GreedyLast, SpecHub)
BUILDERS = {
    "greedy chain": (Chain, ChainOptions(length=2)),
    "sampled chain": (Chain, ChainOptions(length=2, draw="sampled")),
    "fixed": (Fixed, FixedOptions(widths=[2, 1])),
    "dynamic": (Dynamic, DynamicOptions(width=2, depth=2, nodes=3)),
    "adaptive": (Adaptive, AdaptiveOptions(width=2, depth=2, nodes=3)),
    "iid tree": (Sampled, SampledOptions(widths=[2, 1], replacement=True)),
    "wor tree": (Sampled, SampledOptions(widths=[2, 1])),
    "iid chain": (Sampled, SampledOptions(widths=[1, 1], replacement=True)),
    "wor chain": (Sampled, SampledOptions(widths=[1, 1])),
    "wor uneven": (Sampled, SampledOptions(paths=[(0,), (1,), (1, 0), (2,)])),
    "iid uneven": (Sampled, SampledOptions(paths=[(0,), (0, 0), (1,), (0, 1)], replacement=True)),
    "delayed": (Delayed, DelayedOptions(stem=1, widths=[2])),
    "chains": (Chains, ChainsOptions(count=2, length=2)),
    "top then one": (TopThenOne, TopThenOneOptions(widths=[2, 1])),
    "pair": (Pair, PairOptions(depth=1)),
    "coupled chain": (Coupled, CoupledOptions(widths=[1, 1])),
    "coupled tree": (Coupled, CoupledOptions(widths=[2, 1])),
}
SEQUENCE = ("T1_iid_A", "T2_context", "T3_toy2", "T5_equal_ctx", "T6_disjoint2", "T7_sharp_q")
ALWAYS = {Match, PointMass}
SINGLE = set(VERIFIERS)
"""Verify a chain of single draws, whatever the kind."""
ALLOWED = {
    "greedy chain": ALWAYS,
    "sampled chain": SINGLE,
    "fixed": ALWAYS,
    "dynamic": ALWAYS,
    "adaptive": ALWAYS,
    "iid tree": ALWAYS | {MultiRound, KSeq, OptimalTransport, Traversal},
    "wor tree": ALWAYS | {MultiRound, Traversal},
    "iid chain": SINGLE,
    "wor chain": SINGLE,
    "wor uneven": ALWAYS | {MultiRound, Traversal},
    "iid uneven": ALWAYS | {MultiRound, KSeq, OptimalTransport, Traversal},
    "delayed": ALWAYS | {MultiRound, Traversal},
    "chains": ALWAYS | {MultiRound, KSeq, OptimalTransport, Traversal, Gbv},
    "top then one": ALWAYS | {GreedyLast},
    "pair": ALWAYS | {SpecHub},
    "coupled chain": {Match},
    "coupled tree": {Match},
}
PAIRS = [(name, verifier) for name in BUILDERS for verifier in VERIFIERS if verifier in ALLOWED[name]]
SMALL = {
    "greedy chain": (Chain, ChainOptions(length=1)),
    "sampled chain": (Chain, ChainOptions(length=1, draw="sampled")),
    "fixed": (Fixed, FixedOptions(widths=[2])),
    "dynamic": (Dynamic, DynamicOptions(width=2, depth=1, nodes=2)),
    "iid tree": (Sampled, SampledOptions(widths=[2], replacement=True)),
    "wor tree": (Sampled, SampledOptions(widths=[2])),
    "chains": (Chains, ChainsOptions(count=2, length=1)),
    "top then one": (TopThenOne, TopThenOneOptions(widths=[2])),
    "pair": (Pair, PairOptions(depth=1)),
}
SMALL_PAIRS = [
    (name, verifier)
    for name, verifier in PAIRS
    if name in SMALL and (name != "chains" or verifier not in ALLOWED["iid tree"])  # two chains of one token are that tree
]
TEN = [drawn_case(number) for number in range(10)]
TWENTY = [drawn_case(number, vocab=2 + number % 2) for number in range(20)]


def refusals(name, verifier):
    builder, options = BUILDERS[name]
    made = tabular_decoder(TEN[0], builder, options, verifier)
    return mismatches(
        drafter=NamedDeclaration("tabular", made.drafter.declaration),
        builder=NamedDeclaration(builder.name, made.builder.declaration),
        verifier=NamedDeclaration(verifier.name, made.verifier.declaration),
    )


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", BUILDERS)
def test_exactly_the_lossless_pairs_are_allowed(name, verifier):
    found = refusals(name, verifier)
    assert (not found) == (verifier in ALLOWED[name])
    assert all(mismatch.fields == ("tree", "verifier") for mismatch in found)


@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_an_allowed_pair_is_lossless_on_the_known_cases(sequence_case, name, verifier):
    for case in map(sequence_case, SEQUENCE):
        assert prove_step(tabular_decoder(case, *BUILDERS[name], verifier), case.prefix, depth=2).tv <= 1e-12


@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_an_allowed_pair_is_lossless_on_drawn_cases_whose_rows_differ_by_depth(name, verifier):
    for case in TEN[:4]:
        assert prove_step(tabular_decoder(case, *BUILDERS[name], verifier), case.prefix, depth=2).tv <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_an_allowed_pair_is_lossless_on_twenty_drawn_cases(name, verifier):
    for case in TWENTY:
        assert prove_step(tabular_decoder(case, *BUILDERS[name], verifier), case.prefix, depth=2).tv <= 1e-12


@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_two_steps_of_the_decode_loop_are_lossless(name, verifier):
    case = drawn_case(1, vocab=2)
    decoder = tabular_decoder(case, *BUILDERS[name], verifier)
    proof = prove_run(decoder, (0,), max_new_tokens=5)
    assert proof.tv <= 1e-12
    assert proof.num_tokens == 5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_two_steps_of_the_decode_loop_are_lossless_with_two_levels(sequence_case, name, verifier):
    for case in (sequence_case("T3_toy2"), drawn_case(3, vocab=2)):
        decoder = tabular_decoder(case, *BUILDERS[name], verifier)
        assert prove_run(decoder, (0,), max_new_tokens=5).tv <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verifier"), SMALL_PAIRS)
def test_two_steps_of_the_decode_loop_are_lossless_on_known_and_drawn_cases(sequence_case, name, verifier):
    for case in [*map(sequence_case, SEQUENCE[2:5]), *(drawn_case(number, vocab=2) for number in range(2))]:
        decoder = tabular_decoder(case, *SMALL[name], verifier)
        assert prove_run(decoder, (0,), max_new_tokens=5).tv <= 1e-12


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_p=0.8),
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.3, min_p=0.3),
        SamplingParams(temperature=1.0, repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3),
        SamplingParams(temperature=1.0, logit_bias={1: 1.5}, draft=TruncationParams(temperature=2.0, top_k=2)),
        SamplingParams(temperature=0.0, draft=TruncationParams(temperature=0.0)),
    ],
    ids=lambda sampling: ",".join(f"{key}={value}" for key, value in sampling.model_dump(exclude_defaults=True).items()),
)
@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_the_distribution_is_the_warped_target_s_whatever_the_warps_of_target_and_draft(name, verifier, sampling):
    case = drawn_case(3)
    decoder = tabular_decoder(case, *BUILDERS[name], verifier, sampling=sampling)
    assert prove_step(decoder, case.prefix, depth=2).tv <= 1e-12


def greedy_proof(name, verifier, mode):
    case = replace(drawn_case(3), drafter=TabularDrafterOptions(mode=mode))
    greedy = SamplingParams(temperature=0.0, draft=TruncationParams(temperature=0.0))
    return prove_step(tabular_decoder(case, *BUILDERS[name], verifier, sampling=greedy), case.prefix, depth=2)


@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_at_temperature_zero_a_drafter_that_is_the_target_is_accepted(name, verifier):
    proof = greedy_proof(name, verifier, "oracle")
    assert proof.holds
    assert proof.num_outcomes == 1
    assert proof.accepted_at_least[:1] == (1.0,)


@pytest.mark.parametrize(("name", "verifier"), PAIRS)
def test_at_temperature_zero_a_drafter_that_is_never_right_changes_nothing(name, verifier):
    proof = greedy_proof(name, verifier, "anti")
    assert proof.holds
    assert proof.expected_accepted == 0
