"""A judge: it adds to the exact rule what it lets stay, reads the hidden states of drafted tokens, and is refused elsewhere."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import specdec
from specdec.errors import CheckpointError, IncompatibleParts, TargetMismatch
from specdec.heads.judge import Judge, JudgeConfig, read_judge, write_judge
from specdec.losslessness.price.measured import measure_price
from specdec.testing import CheckFailed, check_verifier
from specdec.verifiers.judge import Judge as JudgeRule

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=17, initializer_range=0.3, eos_token_id=None, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def judged(model, tmp_path):
    """A decoder of random drafts whose judge says the same of every token."""

    def make(bias, *, hidden=32, temperature=0.0, **options):
        config = JudgeConfig(hidden_size=hidden, vocab_size=17)
        write_judge(tmp_path, Judge(config, torch.zeros(hidden), torch.tensor(bias)))
        spec = {
            "target": {"use": "huggingface", "model": str(model), "dtype": "float32"},
            "drafter": {"use": "tabular", "vocab": 17, "random": {"seed": 2}},
            "tree": {"use": "fixed", "widths": [2, 1]},
            "verifier": {"use": "judge", "head": str(tmp_path), **options},
            "sampling": {"temperature": temperature},
            "allow_lossy": True,
        }
        return specdec.load(spec)

    return make


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("bias", "options"), [(-20.0, {}), (20.0, {"threshold": 1.0})])
def test_a_judge_that_lets_nothing_stay_leaves_the_exact_rule(judged, model, bias, options, temperature):
    plain = specdec.load("plain", target={"use": "huggingface", "model": str(model), "dtype": "float32"})
    wanted = plain.generate([PROMPT], max_new_tokens=20, temperature=temperature, seed=4)[0].tokens
    assert judged(bias, temperature=temperature, **options).generate([PROMPT], max_new_tokens=20, seed=4)[0].tokens == wanted


def test_one_that_lets_all_stay_accepts_every_draft_and_its_price_is_measured(judged):
    decoder = judged(20.0)
    answer = decoder.generate([PROMPT], max_new_tokens=18)[0]
    assert {record.accepted for record in answer.records[:-1]} == {2}
    price = measure_price(decoder, [PROMPT, PROMPT[:5]], seconds=0.0, seed=1)
    assert price.tv.value > 0.3  # at temperature 0 the share of tokens that are not the target's own


def test_the_hidden_state_is_that_of_the_drafted_token(judged, monkeypatch):
    """The states that are judged give, through the LM head, the logits that the target has after the drafted token."""
    decoder, seen = judged(20.0), []
    monkeypatch.setattr(Judge, "score", lambda self, feature: seen.append(feature) or 1.0)

    def compare(info):
        after = [info.target_probs.unwarped(node) for node in info.verdict.path]
        for feature in seen:
            logits = decoder.target.head(feature[None])[0]
            assert any(torch.allclose(logits, one, rtol=1e-4, atol=1e-4) for one in after)
        compared.append(len(seen))
        seen.clear()

    compared = []
    list(decoder.stream(PROMPT, max_new_tokens=12, step_callback=compare))
    assert sum(compared) > 3


def test_a_judge_of_another_model_is_refused(judged):
    with pytest.raises(TargetMismatch, match=r"verifier 'judge' reads hidden states 48 wide; those of .* are 32 wide"):
        judged(0.0, hidden=48)


def test_files_that_are_no_judge_are_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"has no config\.json; expected the folder of a judge, as `specdec train` writes it"
    ):
        read_judge(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"kind": "medusa", "hidden_size": 4, "vocab_size": 9}))
    with pytest.raises(CheckpointError, match=r"no judge: kind: Input should be 'judge'"):
        read_judge(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4, "vocab_size": 9}))
    save_file({"weight": torch.zeros(5), "bias": torch.zeros(())}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"weight.*\(5,\).*expected weight \[4\] and bias \[\]"):
        read_judge(tmp_path)


def test_it_needs_consent_to_be_lossy_and_a_model_with_hidden_states(judged, tmp_path):
    judged(0.0)
    with pytest.raises(IncompatibleParts, match="verifier 'judge' is lossy"):
        specdec.check("plain", set={"verifier": {"use": "judge", "head": str(tmp_path)}, "drafter": "ngram", "tree": "chain"})
    with pytest.raises(CheckFailed, match="reads hidden states, and cannot run on a table"):
        check_verifier(JudgeRule, {"head": str(tmp_path)})
