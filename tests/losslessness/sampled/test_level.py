import pytest
import torch

from specdec.compose import build
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.losslessness.levels import Outcome
from specdec.losslessness.real_prompts import prompts_for, room
from specdec.losslessness.reference_model import reference_for
from specdec.losslessness.sampled.evidence import Decision, Leaning
from specdec.losslessness.sampled.level import prove_sampled, warm
from specdec.losslessness.sampled.long_runs import LongRuns
from specdec.losslessness.sampled.recording_drafter import Notes, overheard
from specdec.losslessness.sampled.statistics import Test as OneTest
from specdec.losslessness.sampled.verdict import verdict


@pytest.fixture
def long(on_table, planted):
    def make(strategy, *settings, seed=0):
        resolved = on_table(strategy, "sampling.temperature=1.0", *settings)
        decoder = build(resolved, planted)
        return LongRuns(decoder, reference_for(resolved, decoder.target), prompts_for(decoder.target), seed)

    return make


def test_every_token_of_a_long_run_is_judged_and_keeps_its_row(long):
    runs = long("self-sampled-chain")
    assert runs.run(batch=3, num_tokens=10) == 30
    assert runs.evidence.tokens == 30
    assert len(runs.texts) == 3
    assert runs.numeric
    assert max(runs.numeric) < 1e-12
    assert len(runs.rows) == 30


def test_rows_with_a_draft_come_first_and_plain_decoding_has_rows_too(long, on_table, planted):
    resolved = on_table("plain", "sampling.temperature=1.0", drafter=None)
    decoder = build(resolved, planted)
    runs = LongRuns(decoder, reference_for(resolved, decoder.target), prompts_for(decoder.target), 0)
    runs.run(batch=2, num_tokens=10)
    assert len(runs.rows) == 20
    assert all((row.q.argmax() == row.p.argmax()) for row in runs.rows)


def test_overhearing_changes_no_token_and_hears_the_drafters_rows(on_table, planted):
    decoder = build(on_table("self-sampled-chain"), planted)
    notes = Notes(every=1)
    plain = decoder.generate([[1, 2, 3]], seed=4, max_new_tokens=12)[0]
    heard = overheard(decoder, notes).generate([[1, 2, 3]], seed=4, max_new_tokens=12)[0]
    assert plain.tokens == heard.tokens
    context = (1, 2, 3, *plain.tokens[:1])
    expected = decoder.drafter.logits(list(context)).softmax(-1)
    assert torch.allclose(notes.draft_logits(context, 8).exp(), expected)
    assert torch.allclose(notes.logits[context].softmax(-1), decoder.target._table.log_probs(context).exp())
    assert notes.draft_logits((7, 7, 7, 7), 8) is None


def test_in_a_tree_only_the_roots_offers_are_kept(on_table, planted):
    decoder = build(on_table("self-wor"), planted)
    notes = Notes()
    answer = overheard(decoder, notes).generate([[1, 2, 3]], seed=4, max_new_tokens=12)[0]
    ends, place = set(), 4
    for record in answer.records:
        ends.add(place)
        place += record.committed
    assert {len(context) for context in notes.offers} <= ends


def test_a_strategy_is_run_warm_and_in_float32(tiny_llama):
    target = {"use": "huggingface", "model": str(tiny_llama), "dtype": "bfloat16"}
    resolved = check(read("plain", load_catalog(), overrides={"target": target}), load_catalog())
    hot = warm(resolved, load_catalog())
    assert hot.spec.sampling.temperature == 1.0
    assert hot.plain()["target"]["dtype"] == "float32"


def test_prompts_fit_the_context_of_a_target_without_a_tokenizer(on_table, planted):
    table = {"use": "tabular", "vocab": 5, "random": {}, "max_positions": 12}
    target = build(on_table("plain", drafter=None, target=table), planted).target
    prompts = prompts_for(target, 4)
    assert [len(prompt) for prompt in prompts] == [3] * 4
    assert room(target, prompts, 32) == 9


def test_a_target_of_stop_tokens_only_has_prompts_too(on_table, planted):
    table = {"use": "tabular", "vocab": 2, "random": {}, "stop_ids": [0, 1]}
    assert prompts_for(build(on_table("plain", drafter=None, target=table), planted).target, 2)


@pytest.mark.parametrize(
    ("p_value", "visible", "claims", "outcome"),
    [
        (0.5, 0.01, True, Outcome.PROVED),
        (0.5, 0.3, True, Outcome.INCONCLUSIVE),
        (1e-9, 0.3, True, Outcome.REFUTED),
        (1e-9, 0.01, False, Outcome.MEASURED),
    ],
)
def test_the_verdict_needs_a_test_that_could_have_seen_something(p_value, visible, claims, outcome):
    decision = Decision((OneTest("t", p_value, 100, 0.0),), (p_value,))
    found = {"run": {"towards_drafter_visible": visible, "estimated_at_least": 0.2}}
    assert verdict(decision, found, claims=claims, leaning=Leaning.DRAFTER)[0] is outcome


@pytest.mark.parametrize(
    ("anywhere", "outcome"),
    [
        ({}, Outcome.INCONCLUSIVE),
        ({"anywhere_visible": 0.5}, Outcome.INCONCLUSIVE),
        ({"anywhere_visible": 0.2}, Outcome.PROVED),
    ],
)
def test_without_a_drafter_to_lean_to_every_direction_must_have_been_looked_at(anywhere, outcome):
    decision = Decision((OneTest("t", 0.5, 100, 0.0),), (0.5,))
    found = {"answers": {"towards_likelier_visible": 0.01, **anywhere}}
    result, words = verdict(decision, found, claims=True, leaning=Leaning.LIKELIER)
    assert result is outcome
    assert (outcome is Outcome.PROVED) != ("no drafter is known" in words)


@pytest.mark.slow
def test_a_planted_verifier_is_refuted_through_the_hooks(on_table, planted, no_progress):
    drafter = {"use": "tabular", "vocab": 8, "random": {"order": 2, "seed": 9, "sharpness": 3.0}}
    resolved = on_table("self-sampled-chain", "verifier.use=resampling", drafter=drafter)
    result = prove_sampled(resolved, planted, seconds=6, seed=0, progress=no_progress)
    assert result.outcome is Outcome.REFUTED, result.lines
    assert result.facts["smallest_adjusted_p"] < 1e-6


@pytest.mark.slow
def test_a_lossy_strategy_is_measured_and_not_refuted(on_table, planted, no_progress):
    resolved = on_table("self-sampled-chain", "verifier.use=lenient", "allow_lossy=true")
    result = prove_sampled(resolved, planted, seconds=4, seed=0, progress=no_progress)
    assert result.outcome is Outcome.MEASURED
    measured = max(d.get("estimated_at_least", 0.0) for d in result.facts["total_variation"].values())
    assert 0.05 < measured < 0.5
    assert "TV about" in result.words
