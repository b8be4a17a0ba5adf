"""Temperature 0 is greedy, and options mean the same alone and together."""

from itertools import combinations

import pytest

from specdec.decoding.requests import Request
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.losslessness.exact.enumeration import prove_step
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.multi_round import MultiRound

TEMPERATURES = [
    (temperature, top_k, temperature if temperature is not None else (0.0 if top_k is None else 1.0))
    for temperature in (None, 0.0, 1e-6, 1.0)
    for top_k in (None, 1, 50)
]


@pytest.mark.parametrize(("temperature", "top_k", "resolved"), TEMPERATURES)
def test_an_unset_temperature_is_0_alone_and_1_beside_a_cut(temperature, top_k, resolved):
    assert SamplingParams(temperature=temperature, top_k=top_k).temperature == resolved


def test_top_k_alone_samples(compose, table, matching):
    target = table(8, rows={"*": [1 / 8] * 8})
    decoder = compose(target, matching, "mixed", sampling=SamplingParams(top_k=50))
    assert decoder.sampling.temperature == 1.0
    assert len(set(decoder.generate([[1]], max_new_tokens=200)[0].tokens)) > 1


def test_greedy_and_sampled_rows_of_one_batch_answer_as_if_alone(compose, table, strategy):
    tie = {"*": [0.1, 0.3, 0.3, 0.1, 0.2], "*,1": [0.3, 0.1, 0.3, 0.2, 0.1]}
    decoder = compose(table(5, rows=tie), strategy, "mixed")
    requests = [
        Request((0,), max_new_tokens=20, sampling=SamplingParams(temperature=0), seed=1),
        Request((1,), max_new_tokens=20, sampling=SamplingParams(temperature=0), seed=2),
        Request((2,), max_new_tokens=20, sampling=SamplingParams(temperature=1), seed=3),
    ]
    together = decoder.generate(requests)
    assert [a.tokens for a in together] == [decoder.generate([r])[0].tokens for r in requests]
    assert together[1].tokens[:4] == (0, 1, 0, 1)
    assert all(record.accepted >= 0 for answer in together for record in answer.records)


def test_a_tiny_temperature_is_greedy_where_there_is_no_tie(compose, table, strategy):
    target = table(8, seed=7)
    cold = compose(target, strategy, "mixed", sampling=SamplingParams(temperature=1e-6)).generate([[1]], max_new_tokens=20)[0]
    assert cold.tokens == compose(target, strategy, "mixed").generate([[1]], max_new_tokens=20)[0].tokens


# Options go together


OPTIONS = {
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.8,
    "min_p": 0.2,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {1: -2.0},
    "min_new_tokens": 3,
}
COMBINED = [(name,) for name in OPTIONS] + list(combinations(OPTIONS, 2))


@pytest.mark.parametrize("part", range(3))
def test_every_option_alone_and_in_pairs_gives_plain_decodings_seeded_tokens(compose, table, chain_of, matching, part):
    target = table(6, seed=3, stop_ids=(5,))
    for names in COMBINED[part::3]:
        sampling = SamplingParams(**{name: OPTIONS[name] for name in names})
        plain = compose(target, chain_of(1), "anti", sampling=sampling)
        decoder = compose(target, matching, "mixed", sampling=sampling)
        expected = plain.generate([[1], [2]], max_new_tokens=7, seed=4)
        assert [a.tokens for a in decoder.generate([[1], [2]], max_new_tokens=7, seed=4)] == [e.tokens for e in expected], names


@pytest.mark.parametrize("names", COMBINED, ids=" ".join)
def test_every_option_alone_and_in_pairs_keeps_the_distribution_of_rejection_sampling(compose, table, parts_of, names):
    sampling = SamplingParams(**{"temperature": 1.0, **{name: OPTIONS[name] for name in names}})
    drafter = TabularDrafterOptions(vocab=3, random={"order": 2, "seed": 9})
    for parts in (
        parts_of(Chain, ChainOptions(length=2, draw="sampled"), ChainRule),
        parts_of(Sampled, SampledOptions(widths=[2]), MultiRound),
    ):
        decoder = compose(table(3, seed=3, stop_ids=(2,)), parts, drafter, sampling=sampling)
        assert prove_step(decoder, (1, 0, 1), depth=2).holds
