"""transformers' own ways of drafting, instrumented and put to the test: correct ones pass, Gemma 4's is refuted."""

import pytest
import torch
from integration_models import SIZES
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaForCausalLM,
)
from transformers.modeling_layers import MtpModel

from specdec.integrations.transformers import Generating
from specdec.losslessness.external.callables import ask
from specdec.losslessness.external.instrumented import AcceptanceRule
from specdec.losslessness.levels import Outcome
from specdec.sampling.params import SamplingParams

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
DRAWN, GREEDY = SamplingParams(temperature=1.0), SamplingParams(temperature=0.0)


def loaded(folder):
    return LlamaForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("sampling", [DRAWN, GREEDY])
def test_steps_of_assisted_generation_add_up_to_its_answer_and_a_seed_repeats_it(tiny, tiny_draft, sampling):
    generating = Generating(loaded(tiny), sampling, assistant_model=loaded(tiny_draft))
    asked = [ask(generating, PROMPT, 12, seed, 16) for seed in (3, 3, 4)]
    assert asked[0].tokens == asked[1].tokens
    assert (asked[0].tokens == asked[2].tokens) is (sampling is GREEDY)
    assert any(step.drafted for step, _ in asked[0].steps)
    assert all((q is not None) is (sampling is DRAWN and bool(step.drafted)) for step, q in asked[0].steps)
    assert asked[0].steps.rule is (AcceptanceRule.REJECTION if sampling is DRAWN else AcceptanceRule.MATCH)


def test_prompt_lookup_drafts_without_q_and_plain_generation_has_no_steps(tiny):
    looked_up = ask(Generating(loaded(tiny), DRAWN, prompt_lookup_num_tokens=3), PROMPT, 12, 0, 16)
    assert looked_up.steps.rule is AcceptanceRule.MATCH
    assert any(step.drafted for step, _ in looked_up.steps)
    assert ask(Generating(loaded(tiny), DRAWN), PROMPT, 12, 0, 16).steps is None


def test_the_model_is_left_as_it_was_even_where_generation_fails(tiny):
    model = loaded(tiny)
    before = torch.get_rng_state()
    with pytest.raises(Exception, match="assistant_ensemble_weight"):
        Generating(model, DRAWN, prompt_lookup_num_tokens=3, assistant_ensemble_weight=0.5)(PROMPT, 4, 0)
    assert "_get_candidate_generator" not in vars(model)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_assisted_generation_passes(tiny, tiny_draft, judge):
    result = judge(Generating(loaded(tiny), DRAWN, assistant_model=loaded(tiny_draft)), tiny, seconds=5)
    assert result.outcome is not Outcome.REFUTED, result.words
    assert result.facts["smallest_adjusted_p"] > 1e-3
    assert result.facts["steps"]["accepted"] > 50


@pytest.mark.slow
def test_an_ensemble_of_target_and_draft_is_refuted(tiny, tiny_draft, judge):
    lossy = Generating(loaded(tiny), DRAWN, assistant_model=loaded(tiny_draft), assistant_ensemble_weight=0.5)
    result = judge(lossy, tiny, seconds=60)
    assert result.outcome is Outcome.REFUTED, result.words
    assert "acceptance" in result.words


@pytest.fixture(scope="module")
def mtp():
    """A model with two MTP layers of its own making; transformers reads them from a checkpoint."""
    torch.manual_seed(0)
    sizes = {"head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    model = Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES, **sizes, first_k_dense_replace=1, num_mtp_layers=2)).eval()
    layers = MtpModel(model, 2).eval()
    for weight in [*model.parameters(), *layers.layers.parameters()]:
        torch.nn.init.normal_(weight, 0, 0.25) if weight.ndim > 1 else torch.nn.init.ones_(weight)
    return model, layers


def test_steps_of_mtp_layers_add_up_to_the_answer(mtp, monkeypatch):
    model, layers = mtp
    monkeypatch.setattr(MtpModel, "from_pretrained", lambda main_model, **options: layers)
    asked = ask(Generating(model, DRAWN, use_mtp=True), PROMPT, 12, 7, 16)
    assert asked.steps.rule is AcceptanceRule.REJECTION
    assert {len(step.drafted) for step, _ in asked.steps} == {0, 2}
    assert any(step.accepted for step, _ in asked.steps)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """(folder of a random Gemma 4, the model, its assistant that drafts several tokens from one position)."""
    torch.manual_seed(0)
    sizes = SIZES | {"initializer_range": 0.05, "layer_types": ["sliding_attention", "full_attention"]}
    sizes |= {"head_dim": 8, "global_head_dim": 8, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    model = Gemma4ForCausalLM(Gemma4TextConfig(**sizes)).eval()
    text = Gemma4TextConfig(**sizes, num_kv_shared_layers=2)
    draft = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32)).eval()
    draft.generation_config.num_assistant_tokens = 3
    folder = tmp_path_factory.mktemp("gemma")
    model.save_pretrained(folder)
    return folder, model, draft


@pytest.mark.slow
def test_gemma_drafts_that_are_argmax_and_claim_to_be_drawn_are_refuted(gemma, judge):
    folder, model, draft = gemma
    result = judge(Generating(model, DRAWN, assistant_model=draft), folder, seconds=60)
    assert result.outcome is Outcome.REFUTED, result.words
    assert "drafts against q" in result.words
