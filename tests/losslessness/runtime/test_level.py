import time

import pytest
import torch

from specdec.compose import build
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import PartOptions, Target
from specdec.interfaces.results import HiddenStates, Scored
from specdec.losslessness.levels import Outcome
from specdec.losslessness.reference_model import one_by_one, reference_for
from specdec.losslessness.runtime.level import RuntimeProof, _run, prove_runtime
from specdec.losslessness.runtime.near_ties import Ledger, greedy, teacher_force
from specdec.losslessness.runtime.tree_checks import (
    Noise,
    TreeDifferences,
    check_trees,
    random_tree,
    wanted_features,
    width_noise,
)
from specdec.losslessness.runtime.verdict import judged
from specdec.sampling.logits_warper import LogitsWarper
from specdec.trees.tree_rules import validate


@pytest.fixture(scope="module")
def tiny_plan(tiny_llama):
    settings = ["drafter={use: ngram}", "tree={use: dynamic, width: 2, depth: 3, nodes: 6}"]
    target = {"use": "huggingface", "model": str(tiny_llama), "device": "cpu"}
    return check(read("plain", load_catalog(), settings=settings, overrides={"target": target}), load_catalog())


@pytest.fixture(scope="module")
def tiny(tiny_plan):
    target = build(tiny_plan, load_catalog()).target
    return target, reference_for(tiny_plan, target)


def _by_width(numbers):
    """What a token's numbers are moved by for each further token in its forward; nothing for one that is alone."""
    return 0.02 * (len(numbers) - 1) * torch.arange(numbers.shape[-1]).sin().to(numbers)


class Faulty(Target):
    """A target with one planted fault."""

    name = "faulty"
    Options = PartOptions

    def __init__(self, inner, fault):
        self.inner, self.fault = inner, fault

    @classmethod
    def declares(cls, options):
        raise NotImplementedError

    @classmethod
    def build(cls, options, tools):
        raise NotImplementedError

    facts = property(lambda self: self.inner.facts)
    codec = property(lambda self: self.inner.codec)

    def prefill(self, prompts, features):
        return self.inner.prefill(prompts, features)

    def score(self, state, trees):
        scored = self.inner.score(state, trees)
        if self.fault == "neighbours":
            return [Scored(torch.cat([s.logits[:1], s.logits[1:].flip(0)]), s.hidden, s.first_node) for s in scored]
        if self.fault == "features":
            return [Scored(s.logits, HiddenStates(s.hidden.last.roll(1, 0)), s.first_node) for s in scored]
        if self.fault in ("logits by width", "rounding by width"):
            share = 1.0 if self.fault == "logits by width" else 1e-4
            return [Scored(s.logits + share * _by_width(s.logits), s.hidden, s.first_node) for s in scored]
        if self.fault == "features by width" and scored[0].hidden.last is not None:
            return [Scored(s.logits, HiddenStates(s.hidden.last + _by_width(s.hidden.last)), s.first_node) for s in scored]
        return scored

    def commit(self, state, paths):
        short = [path and path[:-1] if self.fault == "commit" else path for path in paths]
        self.inner.commit(state, short)

    def keep(self, state, rows):
        self.inner.keep(state, rows)

    def fork(self, state, copies):
        return self.inner.fork(state, copies)

    def join(self, state, other):
        self.inner.join(state, other)

    def embed(self, ids):
        return self.inner.embed(ids)

    def head(self, hidden):
        return self.inner.head(hidden)


def differences(target, reference):
    seen = TreeDifferences()
    prefixes = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]]
    for key in (3, 4):
        check_trees(target, reference, prefixes, wanted_features(target, ()), key, seen)
    return seen


def test_a_right_target_differs_by_rounding_only(tiny):
    seen = differences(*tiny)
    assert max(seen.plain, seen.sequential, seen.recomputed, seen.features) < 1e-4
    assert seen.trees > 8
    assert not seen.faults


@pytest.mark.parametrize(("fault", "where"), [("neighbours", "plain"), ("features", "features")])
def test_a_wrong_row_is_seen(tiny, fault, where):
    target, reference = tiny
    assert getattr(differences(Faulty(target, fault), reference), where) > 1e-2


def test_a_commit_that_loses_a_token_is_seen(tiny):
    target, reference = tiny
    with pytest.raises(Exception, match="root stands at"):
        differences(Faulty(target, "commit"), reference)


def test_random_trees_are_trees_and_follow_their_key():
    shapes = set()
    for key in range(30):
        tree = random_tree(key, nodes=9, root=1, position=4, vocab_size=5)
        validate(tree, vocab_size=5)
        shapes.add(tree.parents)
        assert random_tree(key, nodes=9, root=1, position=4, vocab_size=5).tokens == tree.tokens
        assert random_tree(key, nodes=9, root=1, position=4, vocab_size=5, chain=True).is_chain
    assert len(shapes) > 20


@pytest.mark.parametrize(("fault", "least"), [("none", 0.0), ("rounding by width", 1e-6)])
def test_width_noise_is_rounding_where_the_processor_rounds_by_width(tiny, fault, least):
    """On some processors a token's numbers do not depend on the width of so small a call: there the first noise is 0."""
    target, _ = tiny
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    noise = width_noise(Faulty(target, fault), text, 3, Features(last=True), (2, 4))
    assert least <= noise.logits < 1e-4
    assert 0 <= noise.hidden < 1e-4
    assert noise.tokens == 6 + 4


@pytest.mark.parametrize(("fault", "name"), [("logits by width", "logits"), ("features by width", "features")])
def test_numbers_that_depend_on_the_width_of_the_call_are_no_tolerance_for_themselves(
    fault, name, tiny, tiny_plan, no_progress
):
    inner, reference = tiny
    proof = RuntimeProof(tiny_plan, build(tiny_plan, load_catalog(), target=Faulty(inner, fault)), reference, seed=0)
    _run(proof, time.monotonic(), 1e-3, no_progress)
    shown = [found for found in proof.faults() if "change with what else is in its forward" in found]
    assert len(shown) == 1
    assert f"a token's {name} change" in shown[0]
    result = judged(proof, None, 0.0)
    assert result.outcome is Outcome.REFUTED
    assert result.facts["width_noise"][f"{name}_of_spread"] > 1e-3


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 2e-3), (torch.float64, 2e-6)])
def test_noise_is_bounded_by_a_share_of_the_spread_in_exact_types_only(dtype, share):
    assert Noise(logits=1.0, logits_share=share / 4).fault(dtype) is None
    assert "logits" in Noise(logits=1e-9, logits_share=share).fault(dtype)
    assert "features" in Noise(hidden=1e-9, hidden_share=float("inf")).fault(dtype)
    assert "logits" in Noise(logits_share=float("nan")).fault(dtype)
    assert Noise(logits=1.0, logits_share=share).fault(torch.bfloat16) is None


def test_teacher_forcing_gives_plain_decodings_rows(tiny):
    target, reference = tiny
    rows = teacher_force(target, [1, 2, 3], [4, 5, 6])
    plain = reference.rows([((1, 2, 3, 4, 5, 6), 3)])[0]
    assert torch.allclose(torch.stack(rows), plain, atol=1e-4)
    assert set(one_by_one(target, [1, 2, 3, 4], 2, Features())) == {2, 3}


def test_the_ledger_tells_ties_from_faults(on_table):
    ledger = Ledger()
    warper = LogitsWarper(greedy(on_table("plain").spec.sampling), prompt_length=1, stop_ids=frozenset())
    rows = [torch.tensor([0.0, 1.0, 1.0 - 1e-6]), torch.tensor([5.0, 0.0, 1.0]), torch.tensor([2.0, 2.0, 0.0])]
    ledger.enter([0], [2, 1, 1], rows, warper)
    assert [(d.place, d.best) for d in ledger.divergences] == [(0, 1), (1, 0), (2, 0)]
    assert [d.place for d in ledger.beyond(1e-4)] == [1]
    assert ledger.rate == pytest.approx(1000.0)
    assert ledger.largest == 5.0
    assert sum(ledger.histogram().values()) == 3


def test_each_token_of_an_entry_is_judged_with_those_before_it(on_table):
    """A repetition penalty of 2 makes token 1 the less likely one as soon as it has been emitted."""
    sampling = on_table("plain", "sampling.repetition_penalty=2.0").spec.sampling
    row, ledger = torch.tensor([0.0, 1.0, 0.8]), Ledger()
    ledger.enter([0], [1, 2], [row, row], LogitsWarper(sampling, prompt_length=1, stop_ids=frozenset()))
    assert not ledger.divergences
    ledger.enter([0], [1, 1], [row, row], LogitsWarper(sampling, prompt_length=1, stop_ids=frozenset()))
    assert [(d.place, d.best) for d in ledger.divergences] == [(1, 2)]


def test_a_bias_moves_the_ledgers_argmax_too(on_table):
    resolved = on_table("plain", "sampling.logit_bias={2: 10.0}")
    ledger = Ledger()
    ledger.enter(
        [0], [2], [torch.tensor([0.0, 1.0, 0.5])], LogitsWarper(resolved.spec.sampling, prompt_length=1, stop_ids=frozenset())
    )
    assert not ledger.divergences


@pytest.mark.slow
def test_a_strategy_on_a_real_architecture_is_proved(tiny_plan, no_progress):
    result = prove_runtime(tiny_plan, load_catalog(), seconds=2, seed=0, progress=no_progress)
    assert result.outcome is Outcome.PROVED, result.lines
    assert result.facts["ledger"]["tokens"] > 0
    assert result.facts["trees"]["trees"] >= 5
    assert 0 < result.facts["near_tie_limit"] < 1e-3


@pytest.mark.slow
def test_in_bfloat16_a_rate_is_measured_beside_the_proof_in_float32(tiny_plan, no_progress):
    resolved = tiny_plan.plain()
    resolved["target"]["dtype"] = "bfloat16"
    resolved = check(read(resolved, load_catalog()), load_catalog())
    result = prove_runtime(resolved, load_catalog(), seconds=3, seed=0, progress=no_progress)
    assert result.outcome is Outcome.PROVED
    assert result.facts["dtype"] == "float32"
    assert result.facts["ledger_own_dtype"]["dtype"] == "bfloat16"
    assert "near_tie" not in str(result.facts["ledger_own_dtype"])


def test_a_strategy_whose_greedy_tokens_are_not_the_targets_is_refuted(on_table, planted, no_progress):
    resolved = on_table("self-sampled-chain", "verifier.use=leaking", "tree={use: chain, length: 3, draw: sampled}")
    result = prove_runtime(resolved, planted, seconds=1.5, seed=0, progress=no_progress)
    assert result.outcome is Outcome.REFUTED
    assert "no near-tie" in result.words
