"""BiLD: the target rolls back what it finds too unlikely, whatever the warps; a chain ends where the drafter is unsure."""

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.interfaces.declarations import Guarantee
from specdec.interfaces.parts import build_part
from specdec.losslessness.exact.enumeration import prove_step, step_size
from specdec.losslessness.price.known_cases import known_prices, worst_words
from specdec.losslessness.price.measured import measure_price
from specdec.sampling.enumeration import outcomes
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.verifiers.bild import Bild, BildOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match

ROWS = [[0.6, 0.39, 0.01], [0.2, 0.1, 0.7], [0.3, 0.3, 0.4]]


def verdicts(tokens, rollback, **sampling):
    """{verdict: probability} on a chain of tokens, p by level as in ROWS."""
    sketch = TreeSketch(0, 3)
    for token in tokens:
        sketch.add(len(sketch) - 1, token)
    tree, logits = sketch.freeze(Draw.DETERMINISTIC), torch.tensor(ROWS[: len(tokens) + 1]).log()
    warper = LogitsWarper(SamplingParams(temperature=1.0, **sampling), prompt_length=1, stop_ids=frozenset())
    rule = build_part(Bild, BildOptions(rollback=rollback))
    return outcomes(lambda rng: rule.verify(tree, warper.target_probs(logits, [0], tree), rng.target))


def test_a_token_stays_while_its_cross_entropy_is_no_more_than_the_limit():
    assert {verdict.path for verdict in verdicts((1, 1), rollback=2.31)} == {(1, 2)}
    assert {verdict.path for verdict in verdicts((1, 1), rollback=2.30)} == {(1,)}
    assert {verdict.path for verdict in verdicts((2, 2), rollback=4.0)} == {()}


def test_the_target_s_likeliest_token_stays_whatever_the_limit():
    assert {verdict.path for verdict in verdicts((0, 2), rollback=0.01)} == {(1, 2)}


def test_unwarped_logits_decide_and_warped_ones_give_the_next_token():
    found = verdicts((1,), rollback=1.0, top_k=1)
    assert {(verdict.path, verdict.next_token) for verdict in found} == {((1,), 2)}
    rolled_back = verdicts((2,), rollback=1.0)
    assert sorted(mass for mass in rolled_back.values()) == pytest.approx(sorted(ROWS[0]), abs=1e-6)


def test_it_is_lossy_and_states_no_exact_price():
    rule = build_part(Bild)
    assert rule.declaration.guarantee is Guarantee.LOSSY
    assert known_prices(rule) == {}
    assert "no exact price" in worst_words({})


@pytest.mark.parametrize(("temperature", "rollback", "least"), [(1.0, 5.0, 0.05), (0.0, 5.0, 0.05), (0.0, 1e-6, 0.0)])
def test_its_price_is_measured_and_at_temperature_0_is_the_share_of_changed_tokens(temperature, rollback, least):
    sampling, options = SamplingParams(temperature=temperature), BildOptions(rollback=rollback)
    decoder = tabular_decoder(drawn_case(0, vocab=5), Chain, ChainOptions(length=3), Bild, options, sampling=sampling)
    price = measure_price(decoder, [[n % 5, 1] for n in range(3)], seconds=0.0, seed=3)
    assert price.tv.value > least or price.tv.value == least == 0.0


def drafted(fallback, draw="deterministic"):
    rule = Match if draw == "deterministic" else ChainRule
    return tabular_decoder(drawn_case(1, vocab=4), Chain, ChainOptions(length=4, draw=draw, fallback=fallback), rule)


def test_a_chain_ends_where_the_drafter_s_likeliest_token_is_less_likely_than_the_fallback():
    sizes = [step_size(drafted(fallback), (0, 0), depth=None).nodes for fallback in (None, 0.0, 0.3, 1.0)]
    assert sizes[0] == sizes[1] == 4
    assert 4 > sizes[2] > sizes[3] == 0 or sizes[3] == 0


@pytest.mark.parametrize("draw", ["deterministic", "sampled"])
@pytest.mark.parametrize("fallback", [0.3, 0.45, 0.6])
def test_a_fallback_keeps_lossless_rules_lossless(draw, fallback):
    assert prove_step(drafted(fallback, draw), (0, 0), depth=3).tv <= 1e-12
