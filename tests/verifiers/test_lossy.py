"""Rules that are lossy by design: marked as such, lossless at their end, greedy where p is certain, refused where wrong."""

from fractions import Fraction

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

import specdec
from specdec.errors import IncompatibleParts, PluginError
from specdec.interfaces.declarations import Guarantee, Kind, Reads
from specdec.losslessness.exact.enumeration import prove_step
from specdec.losslessness.exact.runs import prove_run
from specdec.plugins.loading import load_registry
from specdec.sampling.enumeration import outcomes
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.verifiers.ensemble import Ensemble, EnsembleOptions
from specdec.verifiers.lenience import Lenience, LenienceOptions
from specdec.verifiers.match import Match
from specdec.verifiers.thresholds import Thresholds, ThresholdsOptions
from specdec.verifiers.typical import Typical, TypicalOptions

LOSSY = (Typical, Thresholds, Lenience, Ensemble)
AT_THEIR_END = [
    (Thresholds, ThresholdsOptions(single=1.0), (Fixed, FixedOptions(widths=[2, 1]))),
    (Thresholds, ThresholdsOptions(single=1.0), (Sampled, SampledOptions(widths=[2, 1], replacement=True))),
    (Lenience, LenienceOptions(lenience=1.0), (Chain, ChainOptions(length=2, draw="sampled"))),
    (Ensemble, EnsembleOptions(weight=1.0), (Chain, ChainOptions(length=2, draw="sampled"))),
]


def verified(rule, rows, edges, *, kind=Draw.DETERMINISTIC, prefix=(0,)):
    """{verdict: probability} of a rule on a tree of (parent, token), with p by node."""
    sketch = TreeSketch(0, 3)
    for parent, token in edges:
        sketch.add(parent, token)
    tree = sketch.freeze(kind)
    logits = torch.tensor(rows, dtype=torch.float64).log()
    warper = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=1, stop_ids=frozenset())
    return outcomes(lambda rng: rule.verify(tree, warper.target_probs(logits, list(prefix), tree), rng.target))


def paths(found):
    return {verdict.path for verdict in found}


@pytest.mark.parametrize("rule", LOSSY)
def test_a_lossy_rule_says_so_and_needs_the_spec_s_consent(rule):
    assert rule.declares(rule.Options()).guarantee is Guarantee.LOSSY
    assert load_registry("all").parts[Kind.VERIFIER][rule.name].cls is rule
    tree = {"use": "fixed", "widths": [2]} if rule in (Typical, Thresholds) else {"use": "chain", "draw": "sampled"}
    spec = {
        "target": {"use": "tabular", "vocab": 4, "random": {"order": 2}},
        "drafter": {"use": "tabular", "vocab": 4, "random": {"order": 1}},
        "tree": tree,
        "verifier": rule.name,
        "sampling": {"temperature": 1.0},
    }
    with pytest.raises(IncompatibleParts, match=f"verifier '{rule.name}' is lossy.*'allow_lossy: true' permits it"):
        specdec.check(spec)
    decoder = specdec.load({**spec, "allow_lossy": True})
    assert len(decoder.generate([0, 1], max_new_tokens=5)[0].tokens) == 5


@pytest.mark.parametrize(("rule", "options", "builder"), AT_THEIR_END)
def test_a_lossy_rule_is_lossless_at_its_end_and_declares_it(rule, options, builder):
    assert rule.declares(options).guarantee is Guarantee.LOSSLESS
    for number in range(8):
        case = drawn_case(number)
        assert prove_step(tabular_decoder(case, *builder, rule, options), case.prefix, depth=2).tv <= 1e-12
    decoder = tabular_decoder(drawn_case(1, vocab=2), *builder, rule, options)
    assert prove_run(decoder, (0,), max_new_tokens=5).tv <= 1e-12


@pytest.mark.parametrize("rule", [Typical, Thresholds, Lenience])
def test_at_temperature_0_rules_that_look_at_p_alone_are_greedy_matching(rule):
    builder = (Chain, ChainOptions(length=2, draw="sampled")) if rule is Lenience else (Fixed, FixedOptions(widths=[2, 1]))
    for number in range(6):
        case = drawn_case(number)
        ours, matching = (
            prove_step(tabular_decoder(case, *builder, one, sampling=SamplingParams(temperature=0.0)), case.prefix, depth=2)
            for one in (rule, Match)
        )
        assert ours.tv == 0
        assert ours.accepted_at_least == pytest.approx(matching.accepted_at_least, abs=1e-12)


def test_typical_acceptance_takes_the_longest_path_then_the_likeliest_then_the_first():
    edges = [(0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    even = [0.25] * 4
    root = [0.0, 0.3, 0.5, 0.2]
    rule = Typical(0.25, 1.0)
    assert paths(verified(rule, [root, [0.4, 0.2, 0.2, 0.2], [0.1, 0.1, 0.4, 0.4], even, even, even], edges)) == {(1, 3)}
    assert paths(verified(rule, [root, [0.6, 0.2, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1], even, even, even], edges)) == {(2, 4)}
    assert paths(verified(rule, [root, [0.1, 0.5, 0.2, 0.2], [0.4, 0.4, 0.1, 0.1], even, even, even], edges)) == {(2, 4)}


def test_typical_acceptance_asks_less_where_p_is_flat_and_draws_the_next_token_from_p():
    flat, rule = [0.25] * 4, Typical(0.3, 0.9)
    assert paths(verified(rule, [flat, flat], [(0, 1)])) == {(1,)}
    assert paths(verified(Typical(0.3, 1.1), [flat, flat], [(0, 1)])) == {()}
    refused = verified(Typical(0.3, 1.1), [[0.1, 0.2, 0.3, 0.4], flat], [(0, 0)])
    assert {v.next_token: mass for v, mass in refused.items()} == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    assert Typical.declares(TypicalOptions()).reads is Reads.TREE


def naive_thresholds(p, tokens, single, accumulated):
    """{accepted token or None: probability} with one uniform number for all children."""
    found, passed, reached = {}, Fraction(0), Fraction(0)
    for token in dict.fromkeys(tokens):
        reached += p[token]
        threshold = Fraction(1) if p[token] >= single else max(passed, min(Fraction(1), reached / accumulated))
        found[token] = threshold - passed
        passed = threshold
    return {**found, None: 1 - passed}


@pytest.mark.parametrize("single", ["1/4", "1/2", "1"])
@pytest.mark.parametrize("accumulated", ["1/3", "3/4", "1"])
@pytest.mark.parametrize("tokens", [(1,), (0, 2), (3, 2, 1), (0, 1, 2, 3)])
def test_thresholds_accept_as_one_uniform_number_a_node_would(single, accumulated, tokens):
    for weights in ([5, 3, 2, 0], [0, 1, 0, 3], [1, 1, 1, 1], [0, 0, 1, 0]):
        p = [Fraction(weight, sum(weights)) for weight in weights]
        rows = [[float(x) for x in p]] + [[0.25] * 4] * len(tokens)
        rule = Thresholds(float(Fraction(single)), float(Fraction(accumulated)))
        found: dict[int | None, float] = {}
        for verdict, mass in verified(rule, rows, [(0, token) for token in tokens]).items():
            accepted = tokens[verdict.path[0] - 1] if verdict.path else None
            found[accepted] = found.get(accepted, 0.0) + mass
            assert verdict.path or verdict.next_token not in tokens or not any(p[t] for t in range(4) if t not in tokens)
        known = naive_thresholds(p, tokens, Fraction(single), Fraction(accumulated))
        assert found == pytest.approx({token: float(mass) for token, mass in known.items() if mass}, abs=1e-12)


@pytest.mark.parametrize("rule", [Lenience(0.5), Ensemble(0.5)])
def test_rules_for_chains_refuse_several_children(rule):
    with pytest.raises(PluginError, match=r"2 children were drawn; verifier '\w+' verifies one per node"):
        verified(rule, [[0.25] * 4] * 3, [(0, 1), (0, 2)], kind=Draw.WITHOUT_REPLACEMENT)
