"""Logits processors with a state, under rules that read the whole tree: plain decoding's calls at every node, or a refusal."""

import itertools

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.decoding.requests import Request
from specdec.errors import SpecError
from specdec.sampling.enumeration import outcomes
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.block import Block
from specdec.verifiers.gbv import Gbv
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.traversal import Traversal

PARTS = {
    "block": (Chain, ChainOptions(length=2, draw="sampled"), Block),
    "traversal": (Sampled, SampledOptions(widths=(2, 1)), Traversal),
    "gbv": (Chains, ChainsOptions(count=2, length=2), Gbv),
    "multi_round": (Sampled, SampledOptions(widths=(2, 1)), MultiRound),
}


class Parity:
    """Shifts scores by the number of calls and the sum of tokens that it was called with: a state that every call changes."""

    def __init__(self, state=0):
        self.state = state

    def __call__(self, input_ids, scores):
        self.state = 3 * self.state + int(input_ids[0, -1]) + 1
        shift = torch.tensor([[((self.state * (token + 1)) % 5) / 3 for token in range(scores.shape[1])]], dtype=scores.dtype)
        return scores + shift

    def fork(self):
        return Parity(self.state)


class WithoutFork(Parity):
    fork = None


def distribution(decoder, processor, tokens=3):
    def run(rng):
        batch = decoder.start([Request(prompt=[0, 1], max_new_tokens=tokens, processors=[processor()])], rng_for=lambda _: rng)
        while batch.sequences:
            decoder.step(batch)
        return tuple(batch.everyone[0].emitted.tokens)

    return outcomes(run)


@pytest.mark.parametrize("kind", ["an object with fork()", "a class without"])
@pytest.mark.parametrize("name", PARTS)
def test_the_distribution_is_that_of_plain_decoding_with_the_same_processor(name, kind):
    case = drawn_case(0, vocab=2)
    processor = Parity if kind.startswith("an") else lambda: WithoutFork
    plain = distribution(tabular_decoder(case, Chain, ChainOptions(length=1), Match), Parity)
    found = distribution(tabular_decoder(case, *PARTS[name]), processor)
    assert found == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize("name", ["block", "traversal", "gbv"])
def test_an_object_that_calls_change_and_that_cannot_be_forked_is_refused_naming_the_rule(name):
    decoder = tabular_decoder(drawn_case(0, vocab=3), *PARTS[name])
    with pytest.raises(SpecError, match=rf"WithoutFork changes its 'state'.*'{name}' reads rows of branches"):
        decoder.generate([[0, 1]], max_new_tokens=12, seed=3, processors=[WithoutFork()])


def test_a_rule_along_the_path_takes_the_same_object_as_before():
    decoder = tabular_decoder(drawn_case(0, vocab=3), *PARTS["multi_round"])
    assert decoder.generate([[0, 1]], max_new_tokens=6, seed=3, processors=[WithoutFork()])


def test_samples_and_requests_of_a_batch_answer_as_each_does_alone():
    decoder = tabular_decoder(drawn_case(0, vocab=3), *PARTS["traversal"])
    requests = [Request(prompt=[0, token], max_new_tokens=8, seed=token, n=2, processors=[Parity()]) for token in range(3)]
    together = [answer.tokens for answer in decoder.generate(requests)]
    alone = [answer.tokens for request in requests for answer in decoder.generate([request])]
    assert together == alone


def test_a_function_needs_no_fork():
    decoder = tabular_decoder(drawn_case(0, vocab=3), *PARTS["traversal"])
    assert decoder.generate([[0, 1]], max_new_tokens=6, seed=3, processors=[lambda input_ids, scores: scores * 0.5])


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores


class Native:
    """Counts in an iterator, whose state Python does not show."""

    def __init__(self):
        self.calls = itertools.count()

    def __call__(self, input_ids, scores):
        next(self.calls)
        return scores


class Counting:
    def __init__(self):
        self.calls = 0

    def shift(self, input_ids, scores):
        self.calls += 1
        return scores


UNSEEN = {
    "a state in slots": (Slotted, "Slotted changes its 'calls'"),
    "a state of native code": (Native, "Native holds 'calls', a count, whose state cannot be seen"),
    "the object of a method": (lambda: Counting().shift, r"Counting.shift changes its 'calls'"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_every_kind_of_state_is_refused_under_a_rule_that_reads_branches(name):
    make, message = UNSEEN[name]
    decoder = tabular_decoder(drawn_case(0, vocab=3), *PARTS["traversal"])
    with pytest.raises(SpecError, match=message):
        decoder.generate([[0, 1]], max_new_tokens=12, seed=3, processors=[make()])


def test_methods_of_one_object_are_shared_by_the_requests_that_name_them():
    one, decoder = Counting(), tabular_decoder(drawn_case(0, vocab=3), *PARTS["multi_round"])
    requests = [Request(prompt=[0, 1], max_new_tokens=6, seed=3, processors=[one.shift]) for _ in range(2)]
    with pytest.raises(SpecError, match="2 sequences share it"):
        decoder.generate(requests)
