"""Tiny models of transformers in folders, and what holds an engine against one of them."""

import pytest
import torch
from integration_models import SIZES
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.losslessness.external.level import prove_callable


def saved(folder, seed):
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a random llama of 16 tokens."""
    return saved(tmp_path_factory.mktemp("target"), 5)


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory):
    """Another one."""
    return saved(tmp_path_factory.mktemp("draft"), 6)


@pytest.fixture(scope="session")
def judge():
    """(callable, folder, seconds, temperature) -> the verdict on it."""

    def run(answering, folder, *, seconds, temperature=1.0):
        target = {"use": "huggingface", "model": str(folder), "device": "cpu"}
        overrides = {"target": target, "sampling": {"temperature": temperature}}
        resolved = check(read("plain", load_catalog(), overrides=overrides), load_catalog())
        return prove_callable(answering, resolved, load_catalog(), seconds=seconds, seed=0, progress=lambda share, words: None)

    return run
