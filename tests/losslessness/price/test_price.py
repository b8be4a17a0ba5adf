"""The price of lossy rules: exact on known cases and tables, estimated over a large vocabulary, refused where unknown."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.errors import SpecdecError
from specdec.interfaces.parts import build_part
from specdec.losslessness.price.known_cases import known_prices
from specdec.losslessness.price.measured import Price, measure_price
from specdec.losslessness.price.step_price import step_prices
from specdec.losslessness.rules.comparison import Mean
from specdec.sampling.distribution import from_dense
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.verifiers.block import Block
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.ensemble import Ensemble, EnsembleOptions
from specdec.verifiers.lenience import Lenience, LenienceOptions
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass
from specdec.verifiers.thresholds import Thresholds, ThresholdsOptions
from specdec.verifiers.traversal import Traversal
from specdec.verifiers.typical import Typical, TypicalOptions

CHAIN = (Chain, ChainOptions(length=3, draw="sampled"))


def measured(verifier, builder, options, temperature=1.0, prompts=3):
    sampling, (cls, own) = SamplingParams(temperature=temperature), verifier
    decoder = tabular_decoder(drawn_case(0, vocab=5), builder, options, cls, own, sampling=sampling)
    return measure_price(decoder, [[n % 5, 1] for n in range(prompts)], seconds=0.0, seed=3)


@pytest.mark.parametrize(
    ("cls", "options", "case", "price"),
    [
        (Typical, TypicalOptions(), "A, likeliest draft", 4 / 5),
        (Lenience, LenienceOptions(), "A, one draw", 1 / 15),
        (Lenience, LenienceOptions(lenience=0.5), "A, one draw", 1 / 5),
        (Ensemble, EnsembleOptions(), "A, one draw", 3 / 20),
        (Thresholds, ThresholdsOptions(single=0.25), "A, likeliest two", 3 / 10),
    ],
)
def test_the_price_of_a_lossy_rule_on_a_known_case_is_the_published_one(cls, options, case, price):
    assert known_prices(build_part(cls, options))[case] == pytest.approx(price, abs=1e-12)


@pytest.mark.parametrize(
    ("verifier", "builder"),
    [
        (ChainRule, CHAIN),
        (MultiRound, (Sampled, SampledOptions(widths=(2, 1), replacement=True))),
        (MultiRound, (Sampled, SampledOptions(widths=(2, 2)))),
        (PointMass, (Fixed, FixedOptions(widths=(2, 2)))),
    ],
)
def test_a_lossless_rule_has_no_price(verifier, builder):
    price = measured((verifier, None), *builder)
    assert price.tv.value < 1e-12
    assert price.upper_bound == pytest.approx(1 - 0.05 ** (1 / price.tokens))


def test_a_mixture_costs_a_share_of_what_its_draft_is_apart():
    mild, strong = (measured((Ensemble, EnsembleOptions(weight=w)), *CHAIN, prompts=8) for w in (0.9, 0.1))
    assert 0.001 < mild.tv.value < 0.1 < strong.tv.value
    assert strong.upper_bound > strong.tv.value


def test_at_temperature_zero_a_lenient_chain_is_greedy_matching_and_costs_nothing():
    assert measured((Lenience, None), *CHAIN, temperature=0.0).tv.value < 1e-12


def flat_rows(size, sharpness):
    generator = torch.Generator().manual_seed(1)
    logits = sharpness * torch.randn(size, generator=generator, dtype=torch.float64)
    noise = torch.randn(size, generator=generator, dtype=torch.float64)
    return logits.softmax(0), (logits + 0.7 * noise).softmax(0)


def one_draw(q):
    sketch = TreeSketch(0, 0)
    sketch.add(0, int(q.argmax()))
    return sketch.freeze(Draw.IID, q=q[None], q_row=[0, -1])


def test_where_drafts_are_too_many_to_go_through_the_price_is_estimated_without_bias():
    p, q = flat_rows(3000, 2.0)
    lenient = torch.minimum(q, p / 0.75)
    left = (p - 0.75 * q).clamp_min(0)
    exact = float((lenient + (1 - lenient.sum()) * left / left.sum() - p).abs().sum()) / 2
    rows = [from_dense(p), from_dense(p)]
    found = [
        next(step_prices(build_part(Lenience), one_draw(q), SimpleNamespace(row=rows.__getitem__), (), 3000, 2 * key))
        for key in range(6)
    ]
    mean = sum(one.tv for one in found) / 6
    assert abs(mean - exact) < 0.01 < exact
    assert max(abs(one.tv - exact) for one in found) < 0.03


@pytest.mark.parametrize("verifier", [Block, Traversal])
def test_a_rule_that_does_not_decide_node_by_node_is_refused_by_name(verifier):
    with pytest.raises(SpecdecError, match=f"the price of '{verifier.name}' is not measured"):
        measured((verifier, None), *CHAIN)


def test_nothing_seen_in_few_tokens_leaves_more_possible_than_in_many():
    bounds = [Price(Mean(0.0, 0.0), Mean(1.0, 0.0), tokens, 1, 2).upper_bound for tokens in (10, 60, 600)]
    assert all(few > many for few, many in pairwise(bounds))
    assert bounds[1] < 0.05 < bounds[0]
