"""Losslessness as tests. Replace the rule, the models and the decoder by your own.

The fixtures `assert_lossless` and `assert_rule_lossless` come with specdec.
"""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import SamplingParams
from specdec.integrations.transformers import Generating


def rejection_sampling(p, q, drafts, uniforms):
    for place, token in enumerate(drafts):
        if not next(uniforms) < p[place][token] / q[place][token]:
            return place, uniforms.choose(np.clip(p[place] - q[place], 0, None))
    return len(drafts), uniforms.choose(p[-1])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a target and a draft model: here tiny random ones, so that the tests take seconds."""
    folders = {}
    for seed, name in enumerate(["target", "draft"]):
        torch.manual_seed(seed)
        config = LlamaConfig(vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
        config.bos_token_id = config.eos_token_id = None
        folders[name] = tmp_path_factory.mktemp(name)
        LlamaForCausalLM(config).save_pretrained(folders[name])
    return folders


def test_our_rule_is_lossless(assert_rule_lossless):
    assert_rule_lossless(rejection_sampling, drafts="chain", count=2)


def test_our_engine_samples_from_the_target(assert_lossless, models):
    target, draft = (LlamaForCausalLM.from_pretrained(models[name]) for name in ("target", "draft"))
    draft.generation_config.num_assistant_tokens = 4
    engine = Generating(target, SamplingParams(temperature=1.0), assistant_model=draft)
    assert_lossless(engine, target=models["target"], sampling={"temperature": 1.0}, seconds=20)
