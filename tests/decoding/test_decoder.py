import math
from dataclasses import fields

import pytest

from specdec.decoding.requests import Request
from specdec.drafters.model import ModelDrafter, ModelOptions
from specdec.drafters.none import NoDrafter
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.errors import SpecError
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.results import PHASES, Generation, StepRecord
from specdec.sampling.params import SamplingParams

TIMES = ("seconds", "prefill_seconds")


def told(value):
    """Everything of an answer or a record but its times."""
    if isinstance(value, (Generation, StepRecord)):
        return {f.name: told(getattr(value, f.name)) for f in fields(value) if f.name not in TIMES}
    return [told(item) for item in value] if isinstance(value, tuple) else value


def alone(answer):
    """The same, without the size of the batch."""
    answer = told(answer)
    answer["records"] = [{k: v for k, v in record.items() if k != "batch_size"} for record in answer["records"]]
    return answer


REQUESTS = [
    Request((1,), max_new_tokens=12, seed=1, logprobs=2),
    Request((2, 3, 4), max_new_tokens=1, seed=2),
    Request((5, 6), max_new_tokens=20, seed=3, stop=[(1, 2)]),
    Request((7, 7, 7, 7, 7), max_new_tokens=7, seed=4, sampling=SamplingParams(temperature=0.5, top_k=3)),
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_answers_as_each_of_its_requests_alone(compose, table, strategy, temperature):
    decoder = compose(table(8, seed=1), strategy, "mixed", sampling=SamplingParams(temperature=temperature))
    together = [alone(answer) for answer in decoder.generate(REQUESTS)]
    assert together == [alone(decoder.generate([request])[0]) for request in REQUESTS]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_queue_answers_as_each_of_its_requests_alone(compose, table, strategy, temperature, batch_size):
    decoder = compose(table(8, seed=1), strategy, "mixed", sampling=SamplingParams(temperature=temperature))
    queued = decoder.generate(REQUESTS * 2, batch_size=batch_size)
    assert [alone(answer) for answer in queued] == [alone(decoder.generate([request])[0]) for request in REQUESTS * 2]
    assert max(record.batch_size for answer in queued for record in answer.records) == batch_size


def test_a_queue_keeps_its_places_full_and_shares_prefills_among_samples_that_begin_together(compose, table, chain_of, watched):
    target = watched(table(8, seed=1))
    decoder = compose(target, chain_of(2), NoDrafter())
    prompts = [Request((1, 2), n=3, seed=5, max_new_tokens=6), Request((3,), seed=6, max_new_tokens=20), Request((4,), seed=7)]
    answers = decoder.generate(prompts, batch_size=4)
    assert target.prefills[0] == 2
    assert sum(target.prefills) == 3
    assert {len(trees) for trees in target.trees[:3]} == {4}
    target.prefills.clear()
    pairs = decoder.generate(prompts, batch_size=2)
    assert [answer.tokens for answer in pairs] == [answer.tokens for answer in answers]
    assert target.prefills[0] == 1
    assert sum(target.prefills) == 4
    assert all(answer.prefill_seconds <= answer.seconds for answer in pairs)


def test_unseeded_requests_of_a_queue_have_the_keys_of_a_batch(compose, table, chain_of):
    one, other = (compose(table(8, seed=1), chain_of(2), "mixed") for _ in range(2))
    prompts = [[1], [2], [3]]
    assert [a.seed for a in one.generate(prompts, batch_size=1, max_new_tokens=4)] == [
        a.seed for a in other.generate(prompts, max_new_tokens=4)
    ]


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, "2"])
def test_a_batch_size_that_is_none_is_refused(compose, table, chain_of, batch_size):
    with pytest.raises(SpecError, match=r"batch_size: got .*; expected the number of sequences decoded at once, 1 or more"):
        compose(table(8), chain_of(2)).generate([[1]], batch_size=batch_size)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_adds_up_to_the_answer_of_generate(compose, table, strategy, temperature):
    decoder = compose(table(8, seed=1), strategy, "mixed", sampling=SamplingParams(temperature=temperature))
    for request in REQUESTS:
        [answer] = decoder.generate([request])
        *events, last = decoder.stream(request)
        assert all(event.generation is None for event in events)
        assert told(last.generation) == told(answer)
        events.append(last)
        assert tuple(token for event in events for token in event.tokens) == answer.tokens
        assert "".join(event.text for event in events) == answer.text
        assert [told(event.record) for event in events if event.record] == told(answer.records)
        assert events[0].record is None
        assert events[0].sources == (-1,)
        assert all(len(event.tokens) == len(event.sources) for event in events)


def test_a_stream_has_one_answer(compose, table, chain_of):
    decoder = compose(table(8), chain_of(2))
    with pytest.raises(SpecError, match="n: got 2; a stream has one answer"):
        next(decoder.stream([1], n=2))
    assert (
        list(decoder.stream([1], n=1, max_new_tokens=3))[-1].generation.tokens
        == decoder.generate([[1]], max_new_tokens=3)[0].tokens
    )


def test_a_stream_of_a_full_context_is_one_event(compose, table, chain_of):
    [event] = compose(table(8, max_positions=3), chain_of(2)).stream([1, 2, 3])
    assert (event.tokens, event.text, event.generation.finish_reason) == ((), "", "length")


def test_samples_of_a_prompt_share_one_prefill_and_stand_side_by_side(compose, table, strategy, watched):
    target = watched(table(8, seed=1))
    decoder = compose(
        target, strategy, TabularDrafterOptions(vocab=8, random={"seed": 3}), sampling=SamplingParams(temperature=1.0)
    )
    answers = decoder.generate([Request((1, 2), n=4, seed=5), Request((3,), n=2, seed=6), Request((4,))], max_new_tokens=9)
    assert target.prefills == [3]
    assert len(target.trees[0]) == 7
    assert [(a.prompt_tokens, a.sample_index) for a in answers] == [
        *(((1, 2), j) for j in range(4)),
        *(((3,), j) for j in range(2)),
        ((4,), 0),
    ]
    assert len({a.tokens for a in answers[:4]}) > 1
    assert answers[0].tokens == decoder.generate([[1, 2]], seed=5, max_new_tokens=9)[0].tokens


def test_greedy_samples_are_all_alike(compose, table, strategy):
    answers = compose(table(8, seed=1), strategy, "mixed").generate([[1]], n=3, max_new_tokens=9)
    assert len({a.tokens for a in answers}) == 1


def test_samples_of_a_full_context_are_all_empty_and_the_others_go_on(compose, table, strategy):
    decoder = compose(table(8, seed=1, max_positions=4), strategy, "mixed")
    answers = decoder.generate([Request((1, 2, 3, 4), n=2), Request((1,), n=2)], max_new_tokens=None)
    assert [len(a.tokens) for a in answers] == [0, 0, 3, 3]
    assert {a.finish_reason for a in answers} == {"length"}
    assert math.isnan(answers[0].tau)


def test_seeds_belong_to_requests(compose, table, strategy):
    decoder = compose(table(8, seed=1), strategy, "mixed", sampling=SamplingParams(temperature=1.0))
    prompts = [[1], [1], [1]]
    first, second, third = decoder.generate(prompts, seed=[7, 8, 7], max_new_tokens=12)
    assert (first.seed, second.seed, third.seed) == (7, 8, 7)
    assert told(first) == told(third)
    assert first.tokens != second.tokens
    assert {a.tokens for a in decoder.generate(prompts, seed=7, max_new_tokens=12)} == {first.tokens}


def test_requests_without_a_seed_differ_and_a_fresh_decoder_repeats_them(compose, table, strategy):
    def answers():
        decoder = compose(table(8, seed=1), strategy, "mixed", sampling=SamplingParams(temperature=1.0, seed=3))
        return [a.tokens for _ in range(3) for a in decoder.generate([[1], [1]], max_new_tokens=12)]

    assert len(set(answers())) == 6
    assert answers() == answers()


@pytest.mark.parametrize("model", ["table", "tiny"])
@pytest.mark.parametrize("drafter", ["mixed", "none", "model"])
def test_one_new_token_needs_a_prefill_and_no_step(compose, table, chain_of, watched, model, drafter, request):
    target = watched(table(8, seed=1) if model == "table" else request.getfixturevalue("tiny_llama"))
    if drafter == "none":
        drafter = NoDrafter()
    elif drafter == "model":
        drafter = ModelDrafter.build(ModelOptions(model="target"), BuildTools(target=target))
    decoder = compose(target, chain_of(3), drafter)
    answers = decoder.generate([[1], [2, 3]], max_new_tokens=1)
    assert [len(a.tokens) for a in answers] == [1, 1]
    assert [a.records for a in answers] == [(), ()]
    assert target.trees == []
    assert math.isnan(answers[0].tau)
    assert math.isnan(answers[0].draft_acceptance_rate)
    assert answers[0].alpha_at() == []


@pytest.fixture(scope="session")
def tiny_llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from specdec.targets.assembly import RunSettings, assemble
    from specdec.targets.huggingface import HuggingFaceTarget

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    return HuggingFaceTarget(assemble(LlamaForCausalLM(config).eval(), RunSettings(512, None, probe=False), "tiny"), None)


def test_the_counts_of_a_run_are_those_worked_out_by_hand(compose, counter, chain_of):
    """After 0 comes 1 (prefill). Oracle, 3 drafts a step: 2 3 4 + 5, 6 7 8 + 9, then two tokens are left: 10 + 11."""
    [answer] = compose(counter(), chain_of(3), "oracle").generate([[0]], max_new_tokens=11)
    assert answer.tokens == tuple(range(1, 12))
    counts = [(r.drafted, r.depth, r.tested, r.accepted, r.committed) for r in answer.records]
    assert counts == [(3, 3, 3, 3, 4), (3, 3, 3, 3, 4), (1, 1, 1, 1, 2)]
    assert [r.emitted for r in answer.records] == [(2, 3, 4, 5), (6, 7, 8, 9), (10, 11)]
    assert [r.sources for r in answer.records] == [(0, 0, 0, -1), (0, 0, 0, -1), (0, -1)]
    assert answer.tau == pytest.approx(10 / 3)
    assert answer.draft_acceptance_rate == 1.0
    assert answer.alpha_at() == [1.0, 1.0, 1.0]


WRONG_AFTER_3 = {f"*,{t}": [float(u == (t + 1 + (t == 3)) % 12) for u in range(12)] for t in range(12)}


def test_the_counts_of_rejected_drafts_are_those_worked_out_by_hand(compose, counter, chain_of):
    """The drafter says 5 after 3. Step 1 drafts 2 3 5: two accepted, 4 instead. Step 2 drafts 5 6 7, all right, and 8."""
    drafter = TabularDrafterOptions(vocab=12, rows=WRONG_AFTER_3)
    [answer] = compose(counter(), chain_of(3), drafter).generate([[0]], max_new_tokens=8)
    counts = [(r.drafted, r.depth, r.tested, r.accepted, r.committed) for r in answer.records]
    assert counts == [(3, 3, 3, 2, 3), (3, 3, 3, 3, 4)]
    assert [r.sources for r in answer.records] == [(0, 0, -1), (0, 0, 0, -1)]
    assert answer.tau == pytest.approx(7 / 2)
    assert answer.draft_acceptance_rate == pytest.approx(5 / 6)
    assert answer.alpha_at() == [1.0, 1.0, 0.5]


def test_the_counts_of_a_draft_that_is_wrong_at_once_are_those_worked_out_by_hand(compose, counter, chain_of):
    [answer] = compose(counter(), chain_of(3), "anti").generate([[0]], max_new_tokens=6)
    counts = [(r.drafted, r.tested, r.accepted, r.committed) for r in answer.records]
    assert counts == [(3, 1, 0, 1), (3, 1, 0, 1), (2, 1, 0, 1), (1, 1, 0, 1), (0, 0, 0, 1)]
    assert answer.tau == 1.0
    assert answer.draft_acceptance_rate == 0.0
    assert answer.alpha_at() == [0.0]


def test_the_counts_of_a_run_cut_by_a_stop_are_of_emitted_tokens(compose, counter, chain_of):
    """1 (prefill), then 2 3 4 5 are right and the text ends at 3."""
    [answer] = compose(counter(stop_ids=(3,)), chain_of(4), "oracle").generate([[0]], max_new_tokens=20, ignore_eos=True)
    assert answer.records[0].accepted == 4
    [answer] = compose(counter(), chain_of(4), "oracle").generate([[0]], max_new_tokens=20, stop=[(2, 3)])
    [record] = answer.records
    assert (record.drafted, record.tested, record.accepted, record.committed) == (4, 2, 2, 2)
    assert (record.emitted, record.sources) == ((2, 3), (0, 0))
    assert answer.tau == 2.0


def test_plain_decoding_drafts_nothing_and_emits_one_token_a_step(compose, table, chain_of, watched):
    target = watched(table(8, seed=1))
    [answer] = compose(target, chain_of(4), NoDrafter()).generate([[1]], max_new_tokens=9)
    assert [(r.drafted, r.tested, r.accepted, r.committed) for r in answer.records] == [(0, 0, 0, 1)] * 8
    assert [len(tree) for [tree] in target.trees] == [1] * 8
    assert answer.tau == 1.0


def test_every_record_is_observed_once_in_the_order_of_its_answer(compose, table, strategy):
    seen = []
    decoder = compose(table(8, seed=1), strategy, "mixed", on_step=seen.append)
    answers = decoder.generate([[1], [2, 3]], max_new_tokens=9)
    assert sorted(map(id, seen)) == sorted(id(record) for answer in answers for record in answer.records)
    for answer in answers:
        own = {id(record) for record in answer.records}
        assert [id(record) for record in seen if id(record) in own] == [id(record) for record in answer.records]


def test_a_record_times_every_phase_and_the_answer_the_whole(compose, table, chain_of):
    [answer] = compose(table(8, seed=1), chain_of(3), "mixed").generate([[1]], max_new_tokens=9)
    assert all(set(record.seconds) == set(PHASES) for record in answer.records)
    assert all(seconds >= 0 for record in answer.records for seconds in record.seconds.values())
    spent = sum(sum(record.seconds.values()) for record in answer.records)
    assert 0 < answer.prefill_seconds + spent <= answer.seconds


def test_runs_may_be_interleaved(compose, table, strategy):
    decoder = compose(table(8, seed=1), strategy, "mixed", sampling=SamplingParams(temperature=1.0))
    runs = [decoder.start([request]) for request in REQUESTS]
    while any(run.sequences for run in runs):
        for run in runs:
            decoder.step(run)
    expected = [decoder.generate([request])[0].tokens for request in REQUESTS]
    assert [tuple(run.ended[0].emitted.tokens) for run in runs] == expected
    assert decoder.step(runs[0]) == []
