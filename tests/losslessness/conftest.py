"""Planted faults, tiny transformers models, and strategies on tables."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.config.resolver import check, read

TABLE = {"use": "tabular", "vocab": 8, "random": {"order": 2, "seed": 3}}
Q_TABLE = {"use": "tabular", "vocab": 8, "random": {"order": 2, "seed": 4}}


@pytest.fixture(scope="session")
def planted():
    """specdec with the planted verifiers of the bars installed."""
    path = Path(__file__).parent.parent / "bars" / "planted.py"
    spec = spec_from_file_location("planted_for_tests", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.planted_workshop()


@pytest.fixture(scope="session")
def on_table(planted):
    """The plan of a shipped strategy, with a table for a target and another for a drafter."""

    def make(strategy, *settings, drafter=Q_TABLE, target=TABLE):
        overrides = {"target": target} | ({"drafter": drafter} if drafter is not None else {})
        return check(read(strategy, planted, settings=settings, overrides=overrides), planted)

    return make


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A folder with a random llama of 16 tokens in float32, without a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def no_progress():
    return lambda share, words: None
