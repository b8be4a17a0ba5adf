"""What a probe counts is what decoding does."""

import pytest

from specdec.bench.prompts import Question
from specdec.drafters.ngram import NgramDrafter, NgramOptions
from specdec.errors import SpecdecWarning, SpecError
from specdec.performance.acceptance_profile import replay
from specdec.sampling.keyed_noise import request_key
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_search.acceptance_run import AcceptancePlan, first_turns, measure_acceptance
from specdec.trees.tree_shape import TreeShape
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound

PROMPTS = [[1, 2], [3], [0, 1, 2, 3], [5, 4]]
PLAN = AcceptancePlan(max_new_tokens=40, width=4, depth=3)


def measure(decoder, plan=PLAN):
    return measure_acceptance(decoder, PROMPTS, plan, source="test", provenance={})


@pytest.fixture
def decoder(table, parts_of, compose):
    def make(paths=((0,),), *, temperature=0.0, builder=None, options=None, verifier=Match):
        parts = parts_of(builder or Fixed, options or FixedOptions(paths=paths), verifier)
        return compose(table(8, seed=3), parts, "mixed", sampling=SamplingParams(temperature=temperature))

    return make


SHAPES = [TreeShape.chain(3), TreeShape.k_ary([4, 2]), TreeShape.of([[0], [1], [2], [1, 0], [0, 0], [1, 0, 0]])]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_replay_of_the_probed_answers_takes_exactly_the_steps_of_decoding_with_the_tree(decoder, shape, temperature):
    profile = measure(decoder(temperature=temperature))
    tokens, starts = replay(profile.trails, shape)
    decoding = decoder(shape.paths, temperature=temperature)
    answers = [
        decoding.generate([prompt], max_new_tokens=PLAN.max_new_tokens, seed=request_key(0, number))[0]
        for number, prompt in enumerate(PROMPTS)
    ]
    by_answer = [sum(answer == number for answer, _ in starts) for number in range(len(PROMPTS))]
    assert [len(answer.records) for answer in answers] == by_answer
    assert tokens == sum(record.committed for answer in answers for record in answer.records)


def test_the_probed_counts_are_those_of_a_full_tree_at_every_token(decoder):
    profile = measure(decoder())
    roots = sum(len(trail) - 1 for trail in profile.trails)
    assert profile.reached[0] == roots == len(PROMPTS) * (PLAN.max_new_tokens - 2)
    assert profile.accepted[0][1] == sum(path[:1] == (1,) for trail in profile.trails for path in trail[:-1])
    assert profile.reached[1] <= sum(profile.accepted[0]) <= roots
    assert profile.provenance["answers"] == len(PROMPTS)


def test_calibration_counts_every_child_of_every_reached_node(decoder):
    profile = measure(decoder())
    assert sum(b.accepted for b in profile.calibration) == sum(map(sum, profile.accepted))
    assert sum(b.tested for b in profile.calibration) == PLAN.width * sum(profile.reached)
    chances = [b.probability for b in profile.calibration]
    assert chances == sorted(chances)


def test_what_a_drafter_of_candidates_offers_is_what_decoding_drafts(table, parts_of, compose):
    target = table(6, seed=2, sharpness=3.0)
    shape = TreeShape.chain(3)
    options = NgramOptions(adaptive=False, min_confidence=0.3)
    decoder = compose(target, parts_of(Fixed, FixedOptions(paths=shape.paths), Match), NgramDrafter(options))
    profile = measure(decoder, AcceptancePlan(max_new_tokens=80, width=2, depth=3))
    drafted = profile.drafted(shape)
    records = [r for prompt in PROMPTS for r in decoder.generate([prompt], max_new_tokens=80)[0].records]
    assert 0 < drafted.chance <= 1
    mean = sum(record.drafted for record in records) / len(records)
    assert drafted.chance * drafted.nodes == pytest.approx(mean, rel=0.15)
    assert profile.asked[0] == profile.reached[0]


def test_a_drafter_that_is_the_target_is_calibrated(table, parts_of, compose):
    target = table(6, seed=1, sharpness=2.0)
    parts = parts_of(Chain, ChainOptions(length=2), Match)
    decoder = compose(target, parts, "oracle", sampling=SamplingParams(temperature=1.0))
    plan = AcceptancePlan(max_new_tokens=80, width=6, depth=2)
    for bin_ in measure(decoder, plan).calibration:
        error = (bin_.probability * (1 - bin_.probability) / bin_.tested) ** 0.5
        assert bin_.accepted / bin_.tested == pytest.approx(bin_.probability, abs=5 * error + 1e-3)


def test_own_steps_of_a_fixed_tree_are_counted_as_its_records_count_them(decoder):
    shape = TreeShape.k_ary([3, 2])
    decoding = decoder(shape.paths)
    profile = measure(decoding, AcceptancePlan(max_new_tokens=40, own_steps=True))
    records = [
        record
        for number, prompt in enumerate(PROMPTS)
        for record in decoder(shape.paths).generate([prompt], max_new_tokens=40, seed=request_key(0, number))[0].records
    ]
    assert sum(map(sum, profile.accepted)) == pytest.approx(sum(r.accepted for r in records), abs=len(PROMPTS))
    assert list(map(len, profile.accepted)) == [3, 2]
    assert not profile.paths


@pytest.mark.parametrize(
    ("builder", "options", "verifier"),
    [
        (Sampled, SampledOptions(widths=(2, 2)), MultiRound),
        (Sampled, SampledOptions(widths=(2, 2), replacement=True), MultiRound),
        (Dynamic, DynamicOptions(width=2, depth=3, nodes=6), Match),
        (Chain, ChainOptions(length=3, draw="sampled"), Match),
    ],
)
def test_own_steps_of_any_strategy_can_be_counted(decoder, builder, options, verifier):
    strategy = decoder(builder=builder, options=options, verifier=verifier, temperature=1.0)
    profile = measure(strategy, AcceptancePlan(max_new_tokens=40, own_steps=True))
    assert profile.reached[0] > 0
    assert sum(profile.rates().by_depth[0]) <= 1
    assert profile.calibration
    assert all(0 < b.probability <= 1 for b in profile.calibration)


def test_a_tree_that_draws_is_refused_unless_its_own_steps_are_wanted(decoder):
    with pytest.raises(SpecError, match="--own-steps"):
        measure(decoder(builder=Sampled, options=SampledOptions(widths=(2,)), verifier=MultiRound, temperature=1.0))


def test_ranks_beyond_what_a_line_can_hold_are_refused(decoder):
    with pytest.raises(SpecError, match="width: got 99"):
        measure(decoder(), AcceptancePlan(width=99))


def test_answers_too_short_to_draft_in_are_an_error(decoder):
    with pytest.raises(SpecError, match="nothing was drafted"):
        measure(decoder(), AcceptancePlan(max_new_tokens=2))


def test_a_question_that_the_context_has_no_room_for_is_left_out_and_named(table):
    target = table(8, max_positions=4)
    questions = [Question(f"q/{number}", "all", (text,)) for number, text in enumerate(("ab", "abcdef", "abc"))]
    with pytest.warns(SpecdecWarning, match=r"question q/1 is left out: 6 tokens and 1 of an answer; the context holds 4"):
        assert first_turns(questions, target.codec, target.facts) == [[0, 1], [0, 1, 2]]
    with pytest.warns(SpecdecWarning), pytest.raises(SpecError, match="no question fits into the target's context"):
        first_turns(questions[1:2], target.codec, target.facts)
    with pytest.raises(SpecError, match="question q/3: this model writes abcdefgh; the text has 'z'"):
        first_turns([Question("q/3", "all", ("z",))], target.codec)
