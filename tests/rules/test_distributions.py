"""The distribution of what is emitted is the target's, by exact enumeration."""

from collections import Counter

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.errors import PluginError
from specdec.interfaces.compatibility import NamedDeclaration, mismatches
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import Drafter, DraftSession, PartOptions, Verifier
from specdec.interfaces.proposals import Budget, Distributions, DraftProbs
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.enumeration import prove_step, step_distribution
from specdec.losslessness.exact.runs import prove_run
from specdec.sampling.distribution import draft_probs
from specdec.sampling.enumeration import outcomes
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams, TruncationParams
from specdec.sampling.rng import DraftRng, RequestRng, TargetRng, seeded
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import root_only
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass

GREEDY_CHAIN = (Chain, ChainOptions(length=1))
SAMPLED_CHAIN = (Chain, ChainOptions(length=1, draw="sampled"))
RULES = {
    "greedy chain, match": (*GREEDY_CHAIN, Match),
    "greedy chain, point_mass": (*GREEDY_CHAIN, PointMass),
    "sampled chain, match": (*SAMPLED_CHAIN, Match),
    "sampled chain, point_mass": (*SAMPLED_CHAIN, PointMass),
    "sampled chain, chain": (*SAMPLED_CHAIN, ChainRule),
    "sampled chain, multi_round": (*SAMPLED_CHAIN, MultiRound),
}
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def first_tokens(decoder, prefix=(0, 0)):
    """The distribution of the first token of a step, by enumeration."""
    distribution = [0.0] * decoder.target.facts.vocab_size
    for outcome, mass in step_distribution(decoder, prefix, depth=1).items():
        distribution[outcome.tokens[0]] += mass
    return distribution


# q is drawn from and verified in one and the same form, whatever the drafter's dtype


class RoughOptions(PartOptions):
    """Nothing to choose."""


class Rough(Drafter):
    """bfloat16 logits with many near-ties."""

    name = "rough"
    Options = RoughOptions

    def __init__(self, vocab):
        self.vocab = vocab

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(gives=Gives.DISTRIBUTIONS)

    @classmethod
    def build(cls, options, tools):
        return cls(tools.target.facts.vocab_size)

    def open(self, starts):
        return RoughSession(self.vocab)


class RoughSession(DraftSession):
    def __init__(self, vocab):
        self.vocab = vocab

    def expand(self, frontiers):
        row = (torch.arange(self.vocab) % 5 * 0.003 + 1).to(torch.bfloat16)
        return [None if f is None else Distributions(row.expand(len(f.nodes), -1)) for f in frontiers]

    def observe(self, committed, scored):
        """Nothing to learn."""

    def keep(self, rows):
        """Nothing to drop."""

    def join(self, other):
        """Nothing to append."""


class WatchedDraftRng(DraftRng):
    """Seeded draws that remember what was drawn from."""

    def __init__(self, inner):
        self.inner = inner
        self.drawn_from = []

    def draw(self, probs, count, *, replacement):
        self.drawn_from.append(probs.clone())
        return self.inner.draw(probs, count, replacement=replacement)

    def flip(self, probability):
        return self.inner.flip(probability)

    def couple(self, probs, count, position):
        return self.inner.couple(probs, count, position)


class WatchedVerifier(Verifier):
    """A verifier that remembers every q that it was given."""

    name = "watched"
    Options = PartOptions

    def __init__(self, inner):
        self.inner = inner
        self.trees = []

    @classmethod
    def declares(cls, options):
        return MultiRound.declares(options)

    @classmethod
    def build(cls, options, tools):
        return cls(MultiRound.build(options, tools))

    def verify(self, tree, p, rng):
        self.trees.append(tree)
        return self.inner.verify(tree, p, rng)


ROUGH = [(Chain, ChainOptions(length=2, draw="sampled")), (Sampled, SampledOptions(widths=[2, 1]))]


@pytest.mark.parametrize("shape", ROUGH, ids=("chain", "tree"))
def test_the_verifier_reads_bitwise_the_q_that_was_drawn_from(compose, table, parts_of, shape):
    target = table(16, seed=1)
    decoder = compose(target, parts_of(*shape, WatchedVerifier), Rough(16), sampling=SamplingParams(temperature=1.0))
    rng = WatchedDraftRng(seeded(3).draft)
    run = decoder.start([Request((1,), max_new_tokens=9)], rng_for=lambda key: RequestRng(rng, seeded(key).target))
    while run.sequences:
        decoder.step(run)
    verified = [row for tree in decoder.verifier.trees if tree.q is not None for row in tree.q]
    assert len(verified) == len(rng.drawn_from) > 3
    assert all(torch.equal(drawn, q) for drawn, q in zip(rng.drawn_from, verified, strict=True))


@pytest.mark.parametrize("shape", ROUGH, ids=("chain", "tree"))
def test_drafts_from_bfloat16_logits_keep_the_distribution(compose, table, parts_of, shape):
    decoder = compose(table(8, seed=1), parts_of(*shape, MultiRound), Rough(8), sampling=SamplingParams(temperature=1.0))
    assert prove_step(decoder, (0, 0), depth=1).holds


# The q that is stated is the q after the cuts


TOP_3 = SamplingParams(temperature=1.0, draft=TruncationParams(temperature=1.0, top_k=3))
Q_8 = TabularDrafterOptions(vocab=8, rows={"*": [0.05, 0.2, 0.1, 0.25, 0.15, 0.12, 0.03, 0.1]})
P_8 = {"*": [0.2, 0.05, 0.1, 0.05, 0.3, 0.1, 0.15, 0.05]}


def drafts(q, draw):
    """The distribution of the tree that a one-token chain grows from q [vocab]."""

    def run(rng):
        steps = Chain(ChainOptions(length=1, draw=draw)).grow(0, 0, Budget(nodes=4, depth=1), rng.draft)
        next(steps)
        try:
            steps.send(DraftProbs(q[None]))
        except StopIteration as stop:
            return stop.value.tokens[1]
        raise AssertionError("a chain of one token asks once")

    return outcomes(run)


def test_q_is_zero_outside_the_tokens_that_top_k_keeps_and_is_what_drafts_follow():
    logits = torch.tensor(Q_8.rows["*"], dtype=torch.float64).log()[None]
    q = draft_probs(logits, None, 8, TOP_3.draft_truncation)[0]
    assert q.nonzero()[:, 0].tolist() == [1, 3, 4]
    assert float(q.sum()) == pytest.approx(1, abs=1e-15)
    assert drafts(q, "sampled") == pytest.approx({1: 0.2 / 0.6, 3: 0.25 / 0.6, 4: 0.15 / 0.6})


@pytest.mark.parametrize("verifier", [ChainRule, MultiRound, PointMass, Match])
def test_drafts_that_are_cut_keep_the_targets_distribution(compose, table, parts_of, verifier):
    parts = parts_of(Chain, ChainOptions(length=2, draw="sampled"), verifier)
    assert prove_step(compose(table(8, rows=P_8), parts, Q_8, sampling=TOP_3), (0, 0), depth=2).holds


def test_a_drafter_of_temperature_0_states_a_one_hot_q():
    logits = torch.tensor(Q_8.rows["*"], dtype=torch.float64).log()[None]
    assert draft_probs(logits, None, 8, TruncationParams(temperature=0)).tolist() == [[0, 0, 0, 1, 0, 0, 0, 0]]


# One draw per emitted token


P_3, Q_3 = [0.6, 0.3, 0.1], [0.1, 0.3, 0.6]


@rules
def test_the_first_token_has_the_targets_frequencies_under_every_rule(compose, table, parts_of, rule):
    drafter = TabularDrafterOptions(vocab=3, rows={"*": Q_3})
    decoder = compose(table(3, rows={"*": P_3}), parts_of(*rule), drafter, sampling=SamplingParams(temperature=1.0))
    assert first_tokens(decoder) == pytest.approx(P_3, abs=1e-12)


class DrawsTwice(Verifier):
    """The planted fault: a draft that is not the target's draw is replaced by a second draw from the same distribution."""

    name = "draws_twice"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return Match.declares(options)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        accepted = [child for child in tree.children[0] if rng.flip(p.row(0).prob(tree.tokens[child]))]
        end = accepted[0] if accepted else 0
        token = p.row(end).choose(rng, tree.root_position + tree.depths[end] + 1)
        return Verdict(tuple(accepted), token, all_accepted=not tree.children[end])


def test_a_second_draw_after_a_mismatch_is_seen_as_biased(compose, table, parts_of):
    drafter = TabularDrafterOptions(vocab=3, rows={"*": Q_3})
    parts = parts_of(*SAMPLED_CHAIN, DrawsTwice)
    decoder = compose(table(3, rows={"*": P_3}), parts, drafter, sampling=SamplingParams(temperature=1.0))
    assert first_tokens(decoder) == pytest.approx([0.534, 0.327, 0.139], abs=1e-12)
    assert prove_step(decoder, (0, 0), depth=1).tv > 0.05


class CountingTargetRng(TargetRng):
    """Seeded draws that count."""

    def __init__(self, inner):
        self.inner = inner
        self.choices = 0

    def choose(self, ids, probs, position):
        self.choices += 1
        return self.inner.choose(ids, probs, position)

    def flip(self, probability):
        raise AssertionError("match flips nothing")

    def skip(self, position):
        self.choices += 1
        self.inner.skip(position)


def test_match_draws_exactly_once_for_every_emitted_token(compose, table, matching):
    rng = CountingTargetRng(seeded(5).target)
    decoder = compose(table(6, seed=2), matching, "mixed", sampling=SamplingParams(temperature=1.0))
    run = decoder.start([Request((1,), max_new_tokens=30)], rng_for=lambda key: RequestRng(seeded(key).draft, rng))
    while run.sequences:
        decoder.step(run)
    assert rng.choices == len(run.ended[0].emitted.tokens) == 30


# One distribution for scoring and for drafting


P_4 = [0.4, 0.3, 0.2, 0.1]
FILTERS = {
    "top_p": ({"top_p": 0.65}, [4 / 7, 3 / 7, 0, 0]),
    "top_k": ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
    "min_p": ({"min_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),
    "temperature": ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
}


@rules
@pytest.mark.parametrize("draft", [None, TruncationParams(temperature=1.0)], ids=("both filtered", "target filtered"))
@pytest.mark.parametrize(("options", "expected"), FILTERS.values(), ids=FILTERS.keys())
def test_a_filter_shapes_the_emitted_distribution(compose, table, parts_of, rule, options, expected, draft):
    drafter = TabularDrafterOptions(vocab=4, rows={"*": [0.25] * 4})
    sampling = SamplingParams(**options, draft=draft)
    decoder = compose(table(4, rows={"*": P_4}), parts_of(*rule), drafter, sampling=sampling)
    assert first_tokens(decoder) == pytest.approx(expected, abs=1e-12)
    assert prove_run(decoder, (0,), steps=1, max_new_tokens=3).holds


# Nothing is changed in place


def test_drawing_leaves_q_as_it_was():
    q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    before = q.clone()
    for replacement in (True, False):
        seeded(1).draft.draw(q, 3, replacement=replacement)
        outcomes(lambda rng, replacement=replacement: tuple(rng.draft.draw(q, 2, replacement=replacement)))
    assert torch.equal(q, before)


EVERYTHING = SamplingParams(
    temperature=0.7,
    top_k=5,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    logit_bias={2: -3.0},
    min_new_tokens=4,
)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=1.0), EVERYTHING], ids=("greedy", "plain", "everything")
)
def test_every_option_and_processor_leaves_the_targets_logits_as_they_were(sampling):
    logits = torch.randn(1, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    before = logits.clone()

    def in_place(input_ids, scores):
        return scores.mul_(2).add_(1)

    for processors in ((), (in_place,)):
        warper = LogitsWarper(sampling, prompt_length=1, stop_ids=frozenset({7}), processors=processors)
        warper.target_probs(logits, [1, 2, 2], root_only(2, 2)).row(0)
        assert torch.equal(logits, before)


# The drafter's temperature is a setting, not an accident


DRAFT_CUTS = {
    "greedy": TruncationParams(temperature=0),
    "same": TruncationParams(temperature=0.7),
    "hotter": TruncationParams(temperature=1.5),
}


@pytest.mark.parametrize("draft", DRAFT_CUTS.values(), ids=DRAFT_CUTS.keys())
def test_the_distribution_is_the_targets_whatever_the_drafters_temperature(compose, table, parts_of, draft):
    sampling = SamplingParams(temperature=0.7, draft=draft)
    drafter = TabularDrafterOptions(vocab=3, random={"order": 2, "seed": 9})
    for parts in (
        parts_of(Chain, ChainOptions(length=2, draw="sampled"), ChainRule),
        parts_of(Sampled, SampledOptions(widths=[2, 1]), MultiRound),
        parts_of(Sampled, SampledOptions(widths=[2, 1], replacement=True), MultiRound),
    ):
        assert prove_run(compose(table(3, seed=8), parts, drafter, sampling=sampling), (1,), steps=1, max_new_tokens=3).holds


# Each kind of draw has its rule


KINDS = {
    "top-k": (Fixed, FixedOptions(widths=[3])),
    "without replacement": (Sampled, SampledOptions(widths=[3])),
    "i.i.d.": (Sampled, SampledOptions(widths=[3], replacement=True)),
}
RIGHT = {"top-k": PointMass, "without replacement": MultiRound, "i.i.d.": MultiRound}


@pytest.mark.parametrize("kind", KINDS)
def test_three_children_of_every_kind_keep_the_distribution_under_their_rule(compose, table, parts_of, kind):
    parts = parts_of(*KINDS[kind], RIGHT[kind])
    drafter = TabularDrafterOptions(vocab=5, random={"order": 1, "seed": 3})
    assert prove_step(
        compose(table(5, seed=2), parts, drafter, sampling=SamplingParams(temperature=1.0)), (0, 1), depth=1
    ).holds


def test_top_k_children_are_refused_under_the_rule_for_drawn_ones(compose, table, parts_of):
    parts = parts_of(*KINDS["top-k"], MultiRound)
    decoder = compose(table(5, seed=2), parts, "mixed", sampling=SamplingParams(temperature=1.0))
    [broken] = mismatches(
        drafter=NamedDeclaration("tabular", decoder.drafter.declaration),
        builder=NamedDeclaration("fixed", decoder.builder.declaration),
        verifier=NamedDeclaration("multi_round", decoder.verifier.declaration),
    )
    assert broken.rule == "draw"
    with pytest.raises(PluginError, match="deterministic draws"):
        decoder.generate([[1]], max_new_tokens=5)


# Paths that share a prefix share its draw


@pytest.mark.parametrize("verifier", [Match, PointMass])
def test_a_prefix_that_more_candidates_hold_is_not_favoured(compose, table, parts_of, verifier):
    a, b, c, d, e, f = range(6)
    target = table(6, rows={"": [0.5, 0, 0, 0, 0.5, 0], "*": [1 / 6] * 6}, start=2)
    drafter = TabularDrafterOptions(
        vocab=6, rows={"": [0.7, 0, 0, 0, 0.3, 0], f"{a}": [0, 0.4, 0.3, 0.3, 0, 0], f"{e}": [0, 0, 0, 0, 0, 1]}, start=2
    )
    parts = parts_of(Fixed, FixedOptions(paths=[(0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0)]), verifier)
    decoder = compose(target, parts, drafter, sampling=SamplingParams(temperature=1.0))
    distribution = Counter()
    for outcome, mass in step_distribution(decoder, (0, 0), depth=2).items():
        distribution[outcome.tokens[0]] += mass
    assert distribution == pytest.approx({a: 0.5, e: 0.5}, abs=1e-12)
    assert {b, c, d, f}.isdisjoint(distribution)
    assert prove_step(decoder, (0, 0), depth=2).holds


# The sampled oracle, beside the exact one


def chi_square(counts, distribution, total):
    return sum((counts[x] - total * p) ** 2 / (total * p) for x, p in distribution.items())


@pytest.mark.slow
@pytest.mark.parametrize(("verifier", "thousands", "lossless"), [(ChainRule, 40, True), (DrawsTwice, 4, False)])
def test_forty_thousand_continuations_pass_a_chi_square_test_that_four_thousand_with_a_planted_fault_fail(
    compose, table, parts_of, verifier, thousands, lossless
):
    """False alarm 1e-4 (critical value 31.8 for 8 degrees of freedom); 40,000 see a total variation of about 0.02."""
    drafter = TabularDrafterOptions(vocab=3, rows={"*": Q_3})
    decoder = compose(
        table(3, rows={"*": P_3}), parts_of(*SAMPLED_CHAIN, verifier), drafter, sampling=SamplingParams(temperature=1.0)
    )
    total, counts = 1000 * thousands, Counter()
    for batch in range(thousands):
        answers = decoder.generate([[0]], max_new_tokens=3, n=1000, seed=batch)
        counts.update(answer.tokens[1:3] for answer in answers)
    distribution = {(x, y): P_3[x] * P_3[y] for x in range(3) for y in range(3)}
    assert (chi_square(counts, distribution, total) < 31.8) == lossless
