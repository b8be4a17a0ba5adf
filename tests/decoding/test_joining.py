"""Sequences that join a batch in flight and leave it before their end."""

import pytest

from specdec.decoding.requests import Request
from specdec.decoding.sequence_stream import SequenceStream
from specdec.errors import SpecdecError, SpecError

SAMPLING = {"temperature": 1.0}


def ask(prompt, seed, **options):
    return Request(prompt, sampling=SAMPLING, seed=seed, max_new_tokens=12, **options)


def run(decoder, batch):
    while batch.sequences:
        decoder.step(batch)


def test_a_request_that_joins_later_gets_the_answer_that_it_gets_alone(compose, table, matching):
    decoder = compose(table(), matching)
    alone = [decoder.generate(ask([1, 2], seed))[0].tokens for seed in range(4)]
    batch = decoder.start([], batch_size=2, keeps_going=True)
    joined = decoder.join(batch, [ask([1, 2], 0)])
    decoder.step(batch)
    for seed in (1, 2, 3):
        joined += decoder.join(batch, [ask([1, 2], seed)])
    run(decoder, batch)
    assert [decoder.answer(sequence).tokens for sequence in joined] == alone


def test_samples_of_different_requests_that_wait_side_by_side_share_no_prefill(compose, table, watched, ranking):
    decoder = compose(table(), ranking)
    batch = decoder.start([ask([5], 9)], batch_size=1, keeps_going=True)
    joined = decoder.join(batch, [ask([1, 2], 0)]) + decoder.join(batch, [ask([3, 4, 5], 0)])
    batch.size = 3
    run(decoder, batch)
    assert [decoder.answer(sequence).prompt_tokens for sequence in joined] == [(1, 2), (3, 4, 5)]


def test_one_that_is_cancelled_leaves_and_the_others_go_on_as_if_alone(compose, table, matching):
    decoder = compose(table(), matching)
    alone = [decoder.generate(ask([1, 2], seed))[0].tokens for seed in (0, 1, 2)]
    batch = decoder.start([], keeps_going=True, batch_size=2)
    joined = decoder.join(batch, [ask([1, 2], seed) for seed in (0, 1, 2, 3)])
    decoder.step(batch)
    decoder.cancel(batch, [joined[0], joined[3]])
    assert joined[0] not in batch.sequences
    run(decoder, batch)
    answers = [decoder.answer(sequence) for sequence in joined]
    assert [answer.tokens for answer in answers[1:3]] == alone[1:]
    assert [answer.finish_reason for answer in answers] == ["cancelled", "length", "length", "cancelled"]
    assert answers[0].tokens == alone[0][: len(answers[0].tokens)]
    assert answers[3].tokens == ()
    decoder.cancel(batch, joined)
    assert decoder.answer(joined[1]).finish_reason == "length"


def test_a_request_that_cannot_be_served_leaves_the_batch_as_it_is(compose, table, chain_of):
    decoder = compose(table(), chain_of(3))
    batch = decoder.start([ask([1], 0)], keeps_going=True)
    with pytest.raises(SpecError, match="vocabulary"):
        decoder.join(batch, [ask([99], 0)])
    run(decoder, batch)
    assert decoder.answer(batch.everyone[0]).tokens


def test_one_that_fails_raises_when_its_answer_is_asked_for(compose, table, chain_of):
    def broken(input_ids, scores):
        return scores * float("nan")

    decoder = compose(table(), chain_of(3))
    batch = decoder.start([], keeps_going=True)
    failing, sound = decoder.join(batch, [ask([1], 0, processors=[broken]), ask([1], 0)])
    run(decoder, batch)
    assert decoder.answer(sound).tokens
    with pytest.raises(SpecdecError):
        decoder.answer(failing)


def test_builders_are_told_of_requests_that_wait_outside_of_the_batch(compose, table, parts_of, chain_of):
    seen = []

    class Telling(type(compose(table(), chain_of(2)).builder)):
        def grow(self, root_token, root_position, budget, rng):
            seen.append(budget.queue)
            return super().grow(root_token, root_position, budget, rng)

    parts = chain_of(2)
    decoder = compose(table(), parts_of(Telling, parts.options, parts.verifier))
    batch = decoder.start([ask([1], 0)])
    decoder.step(batch)
    batch.queue = True
    decoder.step(batch)
    assert seen == [False, True]


def test_events_asked_for_late_are_the_sum_of_those_asked_for_in_time(compose, table, matching):
    decoder = compose(table(), matching, "oracle")
    events = list(decoder.stream([1, 2], sampling=SAMPLING, seed=4, max_new_tokens=12))
    sequence = decoder.join(decoder.start([]), [ask([1, 2], 4)])[0]
    batch = decoder.start([], keeps_going=True)
    sequence = decoder.join(batch, [ask([1, 2], 4)])[0]
    run(decoder, batch)
    late = SequenceStream(sequence).event(decoder.answer)
    assert late.tokens == tuple(token for event in events for token in event.tokens)
    assert late.sources == tuple(source for event in events for source in event.sources)
    assert late.pieces == tuple(piece for event in events for piece in event.pieces)
    assert late.depths == tuple(depth for event in events for depth in event.depths)
    assert [depth > 0 for depth in late.depths] == [source >= 0 for _, source in late.pieces]
    assert late.generation.tokens == late.tokens
