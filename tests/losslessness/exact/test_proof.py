"""The prover itself: against brute force, and against decoders with memory."""

from itertools import product

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import Drafter, DraftSession, PartOptions, build_part
from specdec.interfaces.proposals import Distributions
from specdec.losslessness.exact.distance import Emission, prove
from specdec.losslessness.exact.enumeration import step_distribution, target_distribution
from specdec.losslessness.exact.runs import prove_run, run_distribution
from specdec.sampling.enumeration import outcomes
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound


def brute_force_distance(distribution, next_distribution, length, vocab):
    """The distribution over all sequences of `length`, by continuing each outcome token by token."""
    differences = 0.0
    for tokens in product(range(vocab), repeat=length):
        extended = 0.0
        for outcome, mass in distribution.items():
            if outcome.tokens[:length] == tokens[: len(outcome.tokens)]:
                for end in range(len(outcome.tokens), length):
                    mass *= next_distribution(tokens[:end])[tokens[end]]
                extended += mass
        target = 1.0
        for end in range(length):
            target *= next_distribution(tokens[:end])[tokens[end]]
        differences += abs(extended - target)
    return differences / 2


@pytest.mark.parametrize("number", range(6))
def test_the_distance_is_that_of_brute_force(number):
    case = drawn_case(number)
    next_distribution = target_distribution(tabular_decoder(case, *WOR, Match).target, ONE, (0, 0))
    distribution = step_distribution(tabular_decoder(drawn_case(number + 1), *WOR, Match), (0, 0), depth=1)
    for length in (1, 2, 3):
        found = prove(distribution, next_distribution, num_tokens=length).tv
        assert found == pytest.approx(brute_force_distance(distribution, next_distribution, length, 3), abs=1e-12)
        assert found > 1e-3


ONE = SamplingParams(temperature=1.0)
WOR = (Sampled, SampledOptions(widths=[2]))


def test_the_worst_prefix_is_where_the_distribution_breaks():
    def fair(emitted):
        return (0.5, 0.5)

    distribution = {Emission((0, 0), (1,)): 0.3, Emission((0, 1), (1,)): 0.2, Emission((1,), (0,)): 0.5}
    proof = prove(distribution, fair)
    assert proof.worst_prefix == (0,)
    assert proof.worst_prefix_tv == pytest.approx(0.1)
    assert proof.tv == pytest.approx(0.05)
    assert proof.accepted_at_least == (0.5,)
    assert not proof.holds


@pytest.mark.parametrize("verifier", [Match, MultiRound])
def test_a_step_through_the_loop_has_the_distribution_of_the_step_by_parts(verifier):
    """The prefill's token conditions: every root that it can give, each with its own step."""
    case = drawn_case(1, vocab=2)
    decoder = tabular_decoder(case, *WOR, verifier)
    whole = run_distribution(decoder, (0,), steps=1, max_new_tokens=4)
    first = target_distribution(decoder.target, ONE, (0,))(())
    parts = {}
    for root, mass in enumerate(first):
        for outcome, probability in step_distribution(decoder, (0, root), depth=1).items() if mass else ():
            parts[Emission((root, *outcome.tokens), outcome.accepted)] = mass * probability
    assert whole == pytest.approx(parts, abs=1e-12)


def test_the_limit_cuts_the_distribution_and_does_not_bend_it():
    decoder = tabular_decoder(drawn_case(1, vocab=2), Sampled, SampledOptions(widths=[2, 1]), MultiRound)
    for limit in (1, 2, 3):
        proof = prove_run(decoder, (0,), steps=2, max_new_tokens=limit)
        assert proof.num_tokens == limit
        assert proof.holds


def test_a_stop_token_ends_the_distribution_and_does_not_bend_it():
    case = drawn_case(0)
    stopping = type(case)("stop", case.target.model_copy(update={"stop_ids": (2,)}), case.drafter, case.prefix)
    decoder = tabular_decoder(stopping, *WOR, MultiRound)
    distribution = run_distribution(decoder, (0,), steps=1, max_new_tokens=4)
    assert all(2 not in outcome.tokens[:-1] for outcome in distribution)
    assert prove(distribution, target_distribution(decoder.target, ONE, (0,))).holds


class Moody(Drafter[PartOptions]):
    """A drafter with memory: after a rejection it turns its q around."""

    name = "moody"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(gives=Gives.DISTRIBUTIONS)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def open(self, starts):
        return MoodySession(len(starts))


class MoodySession(DraftSession):
    def __init__(self, size):
        self.turned = [False] * size

    def expand(self, frontiers):
        row = torch.tensor([0.7, 0.3], dtype=torch.float64).log()
        return [
            None if f is None else Distributions(torch.stack([row.flip(0) if turned else row] * len(f.nodes)))
            for f, turned in zip(frontiers, self.turned, strict=True)
        ]

    def observe(self, committed, scored):
        self.turned = [len(news.tokens) == 1 for news in committed]

    def keep(self, rows):
        self.turned = [self.turned[row] for row in rows]

    def join(self, other):
        self.turned += other.turned


@pytest.mark.parametrize(
    ("builder", "options", "verifier"),
    [(Chain, ChainOptions(length=2, draw="sampled"), ChainRule), (*WOR, MultiRound), (*WOR, Match)],
)
def test_a_drafter_that_remembers_acceptance_is_still_lossless(builder, options, verifier):
    plain = tabular_decoder(drawn_case(3, vocab=2), builder, options, verifier)
    decoder = plain.replace(drafter=build_part(Moody, PartOptions()), sampling=ONE)
    assert prove_run(decoder, (0,), max_new_tokens=5).holds


def test_too_large_an_enumeration_is_refused():
    with pytest.raises(SpecdecError, match="more than 10 leaves"):
        outcomes(lambda rng: tuple(rng.draft.draw(torch.ones(3), 3, replacement=True)), limit=10)


def test_a_violation_says_where_what_comes_out_and_what_should():
    def fair(emitted):
        return (0.5, 0.5)

    distribution = {Emission((0, 0), (1,)): 0.3, Emission((0, 1), (1,)): 0.2, Emission((1,), (0,)): 0.5}
    [violation] = prove(distribution, fair).violations
    assert violation.prefix == (0,)
    assert violation.reached == pytest.approx(0.5)
    assert violation.got == pytest.approx((0.6, 0.4))
    assert violation.words == (
        "after the emitted tokens [0], at the node of that path (depth 1), reached with probability 0.5, the next token is 0 "
        "with probability 0.6; the target's distribution gives 0.5"
    )


def test_every_guilty_prefix_is_named_and_no_innocent_one():
    """Theorem 0: a fault below one node leaves the conditional distributions elsewhere as they are."""

    def fair(emitted):
        return (0.5, 0.5)

    distribution = {
        Emission((0, 0), (1,)): 0.35,
        Emission((0, 1), (1,)): 0.15,
        Emission((1, 0), (1,)): 0.3,
        Emission((1, 1), (1,)): 0.2,
    }
    assert [violation.prefix for violation in prove(distribution, fair).violations] == [(0,), (1,)]
    assert prove({Emission((t, u), (1,)): 0.25 for t in (0, 1) for u in (0, 1)}, fair).violations == ()
