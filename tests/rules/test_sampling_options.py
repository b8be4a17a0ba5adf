"""Sampling options, logits processors and logprobs mean what they mean in plain decoding, at every position of a draft."""

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.drafters.ngram import NgramDrafter, NgramOptions
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.losslessness.exact.runs import prove_run
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.multi_round import MultiRound

ALWAYS_3 = TabularDrafterOptions(vocab=6, rows={"*": [0, 0, 0, 1, 0, 0]})
FAVOURITE_3 = {"*": [0.1, 0.1, 0.2, 0.4, 0.1, 0.1]}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", [ALWAYS_3, "oracle"], ids=["always 3", "oracle"])
def test_a_token_that_is_biased_away_is_emitted_nowhere(compose, table, strategy, temperature, drafter):
    sampling = SamplingParams(temperature=temperature, logit_bias={3: -100.0})
    answer = compose(table(6, rows=FAVOURITE_3), strategy, drafter, sampling=sampling).generate([[3]], max_new_tokens=60)[0]
    assert len(answer.tokens) == 60
    assert 3 not in answer.tokens


@pytest.mark.parametrize("drafter", [ALWAYS_3, "oracle"], ids=["always 3", "oracle"])
def test_a_token_that_is_below_min_p_is_emitted_nowhere(compose, table, strategy, drafter):
    rows = {"*": [0.5, 0.4, 0.02, 0.04, 0.02, 0.02]}
    decoder = compose(table(6, rows=rows), strategy, drafter, sampling=SamplingParams(min_p=0.1))
    assert set(decoder.generate([[3]], max_new_tokens=60)[0].tokens) == {0, 1}


@pytest.mark.parametrize("options", [{"logit_bias": {1: 2.0, 2: -100.0}}, {"min_p": 0.3}, {"repetition_penalty": 1.5}])
def test_options_shape_the_distribution_at_every_position(compose, table, parts_of, options):
    sampling = SamplingParams(**{"temperature": 1.0, **options})
    drafter = TabularDrafterOptions(vocab=3, random={"order": 2, "seed": 5})
    for parts in (
        parts_of(Chain, ChainOptions(length=2, draw="sampled"), ChainRule),
        parts_of(Sampled, SampledOptions(widths=[2]), MultiRound),
    ):
        assert prove_run(compose(table(3, seed=1), parts, drafter, sampling=sampling), (1,), steps=1, max_new_tokens=4).holds


class Forbids:
    """Forbids a token, and remembers the prefixes that it saw."""

    def __init__(self, token):
        self.token = token
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(tuple(input_ids[0].tolist()))
        scores = scores.clone()
        scores[:, self.token] = float("-inf")
        return scores


def plain_with(processor, logits_of):
    """The logits of a target behind a processor of its own."""
    return lambda tokens: processor(torch.tensor([list(tokens)]), logits_of(tokens)[None])[0]


@pytest.mark.parametrize("drafter", ["oracle", "anti", "mixed"])
def test_a_processor_sees_plain_decodings_prefixes_in_order_and_is_obeyed(
    compose, table, next_logits, plain_loop, strategy, drafter
):
    target, processor, plain = table(6, seed=2), Forbids(3), Forbids(3)
    answer = compose(target, strategy, drafter).generate([[3, 1]], max_new_tokens=24, processors=[processor])[0]
    expected = plain_loop(plain_with(plain, next_logits(target)), [3, 1], limit=24)
    assert answer.tokens == expected.ids
    assert 3 not in answer.tokens
    assert processor.seen == plain.seen == list(expected.prefixes)


def test_a_processor_is_obeyed_by_an_ngram_drafters_runs(compose, table, next_logits, plain_loop, ranking):
    target, processor, plain = table(6, seed=2), Forbids(3), Forbids(3)
    drafter = NgramDrafter(NgramOptions(min_confidence=0.0))
    prompt = [3, 1, 2, 3, 1, 2]
    answer = compose(target, ranking, drafter).generate([prompt], max_new_tokens=24, processors=[processor])[0]
    assert answer.tokens == plain_loop(plain_with(plain, next_logits(target)), prompt, limit=24).ids
    assert processor.seen == plain.seen


def test_a_processor_sees_plain_decodings_prefixes_when_sampling_by_match(compose, table, chain_of, matching):
    target, sampling = table(6, seed=2), SamplingParams(temperature=1.0)
    processors = Forbids(3), Forbids(3)
    plain = compose(target, chain_of(1), "anti", sampling=sampling)
    decoder = compose(target, matching, "oracle", sampling=sampling)
    options = {"max_new_tokens": 24, "seed": 5}
    expected = plain.generate([[1]], processors=[processors[0]], **options)[0]
    assert decoder.generate([[1]], processors=[processors[1]], **options)[0].tokens == expected.tokens
    assert processors[0].seen == processors[1].seen


OPEN, CLOSE, END, MARK = 1, 2, 5, 4


class Grammar:
    """Allows only ( ) ( ) END; its own state moves by one token at every call, and it refuses to be called after the end."""

    sentence = (OPEN, CLOSE, OPEN, CLOSE, END)

    def __init__(self, prompt_length):
        self.expected_length = prompt_length
        self.state = 0

    def __call__(self, input_ids, scores):
        assert input_ids.shape[1] == self.expected_length
        assert self.state < len(self.sentence)
        allowed = torch.full_like(scores, float("-inf"))
        allowed[:, self.sentence[self.state]] = scores[:, self.sentence[self.state]]
        self.state += 1
        self.expected_length += 1
        return allowed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["oracle", "mixed", TabularDrafterOptions(vocab=6, rows={"*": [1 / 6] * 6})])
def test_a_grammar_with_state_is_obeyed_and_not_called_after_the_end(compose, table, strategy, drafter, temperature):
    target = table(6, seed=3, stop_ids=(END,))
    decoder = compose(target, strategy, drafter, sampling=SamplingParams(temperature=temperature))
    grammar = Grammar(2)
    answer = decoder.generate([[0, 0]], max_new_tokens=20, processors=[grammar])[0]
    assert answer.tokens == Grammar.sentence
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("guess", range(6))
def test_drafts_that_follow_the_grammar_or_break_it_change_nothing(compose, table, strategy, guess):
    """The counting drafter follows ( ) once, then breaks the rule; END is drafted too early by guess 5."""
    rows = {"*": [float(token == guess) for token in range(6)], f"*,{OPEN}": [0, 0, 1, 0, 0, 0]}
    target = table(6, seed=3, stop_ids=(END,))
    drafter = TabularDrafterOptions(vocab=6, rows=rows)
    answer = compose(target, strategy, drafter).generate([[0, 0]], max_new_tokens=20, processors=[Grammar(2)])[0]
    assert answer.tokens == Grammar.sentence


class AfterMark:
    """After the marker only token 0 is allowed."""

    def __call__(self, input_ids, scores):
        if MARK in input_ids[0].tolist():
            only = torch.full_like(scores, float("-inf"))
            only[:, 0] = 0.0
            return only
        return scores


@pytest.mark.parametrize("mode", ["oracle", "mixed"])
def test_a_constraint_that_begins_inside_an_accepted_run_holds_from_the_next_position(compose, counter, strategy, mode):
    decoder = compose(counter(12), strategy, mode)
    answer = decoder.generate([[0]], max_new_tokens=9, processors=[AfterMark()])[0]
    assert answer.tokens == (1, 2, 3, MARK, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("drafter", ["oracle", "anti", "mixed"])
def test_every_token_of_every_row_has_the_bare_models_logprobs(compose, tiny, kind, shape, drafter):
    target, logits_of = tiny(kind)
    prompts = [[5], [6, 7, 8], [9, 10]]
    answers = compose(target, shape, drafter).generate(prompts, max_new_tokens=8, logprobs=3)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert [entry.token for entry in answer.logprobs] == list(answer.tokens)
        for position, entry in enumerate(answer.logprobs):
            row = logits_of([*prompt, *answer.tokens[:position]]).log_softmax(-1)
            assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-6)
            best = row.topk(3)
            assert [token for token, _ in entry.top] == best.indices.tolist()
            assert [logprob for _, logprob in entry.top] == pytest.approx(best.values.tolist(), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_logprobs_are_the_raw_models_whatever_the_options(compose, table, next_logits, strategy, temperature):
    target = table(6, seed=2)
    sampling = SamplingParams(temperature=temperature, logit_bias={3: -100.0}, repetition_penalty=1.4)
    requests = [Request((1,), max_new_tokens=20, logprobs=0), Request((2,), max_new_tokens=5)]
    answer, without = compose(target, strategy, "mixed", sampling=sampling).generate(requests)
    assert without.logprobs is None
    assert len(answer.logprobs) == 20
    for position, entry in enumerate(answer.logprobs):
        row = next_logits(target)([1, *answer.tokens[:position]]).log_softmax(-1)
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-12)
        assert entry.top == ()
