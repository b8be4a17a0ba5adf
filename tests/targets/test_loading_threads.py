import json
import sys
import threading
import warnings

import pytest
import torch
from transformers.utils import logging

import specdec
from specdec.errors import CheckpointError, TargetMismatch
from specdec.interfaces.parts import BuildTools
from specdec.plugins.loading import load_registry
from specdec.targets.huggingface import HuggingFaceOptions, HuggingFaceTarget
from specdec.targets.loading import load_model


@pytest.fixture
def tied(make_model, tmp_path):
    """A sound checkpoint whose LM head is its embedding, in bfloat16: what shows each setting that a load changes."""
    folder = tmp_path / "tied"
    make_model("llama", dtype=torch.bfloat16, tie_word_embeddings=True).save_pretrained(folder)
    return folder


def settings():
    filters = [tuple(map(str, entry[:3])) for entry in warnings.filters]
    return torch.get_default_dtype(), logging.get_verbosity(), logging.is_progress_bar_enabled(), filters, sys.stdout


def at_once(action, count=4):
    errors = []

    def run():
        try:
            action()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return errors


def test_loads_in_threads_give_what_one_gives_and_change_no_setting(tied):
    before = settings()
    options = HuggingFaceOptions(model=str(tied), device="cpu", probe=False)
    assert at_once(lambda: [HuggingFaceTarget.build(options, BuildTools()) for _ in range(3)]) == []
    assert settings() == before
    assert load_model(str(tied), dtype=None, device="cpu", attention="sdpa").dtype == torch.bfloat16


def test_whole_decoders_load_in_threads(tied):
    before = settings()
    spec = {"drafter": {"use": "ngram"}, "target": {"use": "huggingface", "model": str(tied), "device": "cpu", "probe": False}}
    assert at_once(lambda: specdec.load(spec), 3) == []
    assert settings() == before


@pytest.mark.parametrize("damage", ["no weights", "other weights", "no JSON"])
def test_a_load_that_fails_changes_no_setting(tied, damage):
    before = settings()
    if damage == "no weights":
        (tied / "model.safetensors").unlink()
    elif damage == "other weights":
        config = json.loads((tied / "config.json").read_text())
        (tied / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    else:
        (tied / "config.json").write_text("{")
    with pytest.raises((CheckpointError, TargetMismatch)):
        load_model(str(tied), dtype=None, device="cpu", attention="sdpa")
    assert settings() == before


def test_the_registry_is_read_in_threads_and_stdout_stays():
    before = settings()
    assert at_once(lambda: [load_registry() for _ in range(30)]) == []
    assert settings() == before
