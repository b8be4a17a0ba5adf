"""Who may share a logits processor: functions and unchanging objects; what has a state is forked, made anew or refused."""

import functools

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.errors import SpecError
from specdec.sampling.params import SamplingParams


class Counter:
    """Forbids the token that it was called for the n-th time with: the answer depends on every earlier call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        scores = scores.clone()
        scores[0, self.calls % scores.shape[1]] = float("-inf")
        return scores


class ListKeeper(Counter):
    """Changes what it holds in place."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(int(input_ids[0, -1]))
        return scores


class TensorKeeper(Counter):
    """Changes a tensor in place, one attribute further in."""

    def __init__(self):
        self.inner = ListKeeper()
        self.inner.total = torch.zeros(1)

    def __call__(self, input_ids, scores):
        self.inner.total += 1
        return scores


class Forking(Counter):
    """Says how a fresh one is made."""

    def fork(self):
        return Forking()


class Prepared(Counter):
    """Sets itself up at its first call, as transformers' SequenceBias does."""

    def __init__(self):
        self.bias = None

    def __call__(self, input_ids, scores):
        if self.bias is None:
            self.bias = torch.arange(scores.shape[1])
        return scores + self.bias


@pytest.fixture
def decoder(compose, table, chain_of):
    return compose(table(8, seed=3), chain_of(2), sampling=SamplingParams(temperature=1.0, seed=4))


PROMPTS = [[1], [2, 3]]
OPTIONS = {"max_new_tokens": 6, "seed": 5}


@pytest.mark.parametrize("kind", [Counter, ListKeeper, TensorKeeper])
def test_an_object_that_its_calls_change_may_not_serve_two_sequences(decoder, kind):
    for shared in (kind(), kind().__call__):
        with pytest.raises(
            SpecError, match=r"logits processor \S*(Keeper|Counter)\S* changes its '\w+' when it is called, and 2"
        ):
            decoder.generate(PROMPTS, processors=[shared], **OPTIONS)
    with pytest.raises(SpecError, match="2 sequences share it"):
        decoder.generate(PROMPTS[:1], processors=[kind()], n=2, **OPTIONS)
    one = kind()
    with pytest.raises(SpecError, match="2 sequences share it"):
        decoder.generate([Request((1,), processors=[one]), Request((2,), processors=[one])], max_new_tokens=6)


def test_a_forked_one_or_a_class_serves_each_sequence_as_if_it_were_alone(decoder):
    alone = [decoder.generate([prompt], processors=[Counter()], **OPTIONS)[0].tokens for prompt in PROMPTS]
    assert [g.tokens for g in decoder.generate(PROMPTS, processors=[Counter], **OPTIONS)] == alone
    forking = Forking()
    assert [g.tokens for g in decoder.generate(PROMPTS, processors=[forking], **OPTIONS)] == alone
    assert forking.calls == 0


def test_one_sequence_may_have_an_object_with_a_state(decoder):
    counter = Counter()
    decoder.generate(PROMPTS[:1], processors=[counter], **OPTIONS)
    assert counter.calls >= 6


@pytest.mark.parametrize("make", [Prepared, lambda: lambda ids, scores: scores, lambda: functools.partial(torch.add, alpha=1)])
def test_what_no_call_changes_may_be_shared(decoder, make):
    shared = make()
    if isinstance(shared, functools.partial):
        shared = functools.partial(lambda scale, ids, scores: scores * scale, 2.0)
    answers = decoder.generate(PROMPTS, processors=[shared], **OPTIONS)
    assert [len(answer.tokens) for answer in answers] == [6, 6]


@pytest.mark.parametrize(
    ("given", "words"), [(int, "a fresh one is int"), (type("Needy", (Counter,), {"__init__": max}), "no fresh one")]
)
def test_a_class_that_makes_no_processor_is_named(decoder, given, words):
    with pytest.raises(SpecError, match=words):
        decoder.generate(PROMPTS, processors=[given], **OPTIONS)
