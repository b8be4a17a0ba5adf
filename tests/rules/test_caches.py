"""No request leaves anything behind, and the cache after every step is that of a recomputation."""

import pytest
from transformers import AutoConfig

from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.decoding.requests import Request
from specdec.drafters.ngram import NgramDrafter, NgramOptions
from specdec.errors import IncompatibleParts, SpecError
from specdec.targets.capability import declaration
from specdec.trees.draft_tree import root_only

REPEATING = [5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7]


def ngram():
    return NgramDrafter(NgramOptions(min_confidence=0.0))


def told(generation):
    """What a user can see of an answer, times left out."""
    steps = [(r.drafted, r.depth, r.tested, r.accepted, r.emitted) for r in generation.records]
    return generation.tokens, generation.finish_reason, steps


def left_after(compose, target, parts, events):
    """A stream that is left after so many events, then a request that goes on from there: what is told of both."""
    fresh = compose(target, parts, "mixed").generate([[5, 6]], max_new_tokens=10, seed=1)[0]
    decoder = compose(target, parts, "mixed")
    stream = decoder.stream([5, 6], max_new_tokens=10, seed=1)
    seen = [token for _, event in zip(range(events), stream, strict=False) for token in event.tokens]
    stream.close()
    assert tuple(seen) == fresh.tokens[: len(seen)]
    longer = [5, 6, *seen]
    again = decoder.generate([longer], max_new_tokens=10, seed=1)[0]
    assert told(again) == told(compose(target, parts, "mixed").generate([longer], max_new_tokens=10, seed=1)[0])


@pytest.mark.parametrize("events", range(1, 7))
def test_a_stream_that_is_left_after_any_event_leaves_no_trace(compose, table, strategy, events):
    left_after(compose, table(seed=2), strategy, events)


@pytest.mark.parametrize("events", [1, 3])
def test_a_stream_that_is_left_leaves_no_trace_in_a_transformers_cache(compose, tiny, shape, events):
    left_after(compose, tiny()[0], shape, events)


class Leaves(Exception):
    """Raised in a callback."""


@pytest.mark.parametrize("call", [1, 4])
@pytest.mark.parametrize("model", ["table", "tiny"])
def test_an_exception_inside_a_callback_leaves_no_trace(compose, table, tiny, shape, model, call):
    target = table(seed=2) if model == "table" else tiny()[0]
    seen = []

    def on_step(record):
        seen.append(record)
        if len(seen) == call:
            raise Leaves

    def processor(input_ids, scores):
        if input_ids.shape[1] == 2 + call:
            raise Leaves
        return scores

    decoder = compose(target, shape, "anti", on_step=on_step)
    for processors in ((), (processor,)):
        with pytest.raises(SpecError if processors else Leaves, match="processor fails: Leaves" if processors else None):
            decoder.generate([[5, 6]], max_new_tokens=10, seed=1, processors=processors)
    expected = compose(target, shape, "anti").generate([[5, 6]], max_new_tokens=10, seed=1)[0]
    assert told(decoder.generate([[5, 6]], max_new_tokens=10, seed=1)[0]) == told(expected)


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "qwen3_next", "jamba", "recurrent_gemma"])
def test_a_target_with_recurrent_layers_is_refused_before_its_weights_are_read_and_told_what_would_work(tmp_path, model_type):
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    catalog = load_catalog()
    spec = {"target": {"use": "huggingface", "model": str(tmp_path)}, "drafter": {"use": "ngram"}}
    with pytest.raises(IncompatibleParts, match="cannot forget a rejected draft"):
        check(read(spec, catalog), catalog)


def test_a_target_with_attention_only_is_not_refused():
    assert declaration(AutoConfig.for_model("llama"), attention="sdpa", max_context=None).no_decoding_because is None


def test_steps_with_and_without_drafts_in_turn_give_the_plain_loops_tokens(compose, tiny, plain_loop, kind, ranking):
    target, logits_of = tiny(kind)
    answer = compose(target, ranking, ngram()).generate([REPEATING], max_new_tokens=24)[0]
    assert answer.tokens == plain_loop(logits_of, REPEATING, limit=24).ids
    assert {record.drafted > 0 for record in answer.records} == {False, True}


LONG, SHORT, THIRD = [1, 2, 3] * 8, [4, 1], [2, 2, 5, 2, 2]


@pytest.mark.parametrize("order", [(LONG, SHORT), (SHORT, LONG), (LONG, LONG), (SHORT, LONG, THIRD)])
@pytest.mark.parametrize("drafter", ["mixed", "ngram"])
def test_a_request_after_others_drafts_accepts_and_answers_as_the_first_of_a_fresh_decoder(
    compose, table, chain_of, order, drafter
):
    target = table(6, seed=2)
    make = ngram if drafter == "ngram" else lambda: drafter
    used = compose(target, chain_of(4), make())
    for prompt in order:
        fresh = compose(target, chain_of(4), make()).generate([prompt], max_new_tokens=20, seed=3)[0]
        assert told(used.generate([prompt], max_new_tokens=20, seed=3)[0]) == told(fresh)


@pytest.mark.parametrize("drafter", ["mixed", "ngram"])
def test_three_interleaved_requests_answer_as_if_alone(compose, tiny, chain_of, drafter):
    target, _ = tiny()
    decoder = compose(target, chain_of(4), ngram() if drafter == "ngram" else drafter)
    requests = [Request(tuple(p), max_new_tokens=m, seed=1) for p, m in ((REPEATING, 12), ([5], 3), ([9, 9, 9], 8))]
    runs = [decoder.start([request]) for request in requests]
    while any(run.sequences for run in runs):
        for run in runs:
            decoder.step(run)
            if run.state is not None:
                run.state.check_integrity()
    alone = [decoder.generate([request])[0].tokens for request in requests]
    assert [tuple(run.ended[0].emitted.tokens) for run in runs] == alone


def test_a_step_feeds_the_draft_and_its_root_whatever_the_length_of_the_prefix(compose, tiny, watched, chain_of, kind):
    inner, _ = tiny(kind)
    fed = {}
    for length in (2, 20, 40):
        target = watched(inner)
        compose(target, chain_of(3), "oracle").generate([[5 + n for n in range(length)]], max_new_tokens=14)
        fed[length] = [len(tree) for [tree] in target.trees]
    assert fed[2] == fed[20] == fed[40] == [4, 4, 4, 1]


def test_the_cache_after_every_step_gives_the_logits_of_a_recomputation(compose, tiny, kind, shape):
    target, logits_of = tiny(kind)
    decoder = compose(target, shape, "mixed")
    run = decoder.start([Request((5, 6, 7), max_new_tokens=12)])
    while run.sequences:
        tokens = run.sequences[0].tokens
        assert run.state.lengths == (len(tokens) - 1,)
        run.state.check_integrity()
        found = target.score(run.state, [root_only(tokens[-1], len(tokens) - 1)])[0].logits[0]
        target.commit(run.state, [None])
        assert (found - logits_of(tokens)).abs().max() <= 1e-9
        decoder.step(run)
