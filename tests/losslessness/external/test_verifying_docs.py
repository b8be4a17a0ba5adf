"""docs/verifying_others.md is true: its functions run and do what it says."""

import re
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from specdec.losslessness.external.callables import ask, find_callable

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "verifying_others.md"
FENCE = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(FENCE.findall(PAGE.read_text()))


@pytest.fixture
def other_llama(tiny_llama, tmp_path):
    """A folder with a model that differs a little from `tiny_llama`."""
    model = LlamaForCausalLM.from_pretrained(tiny_llama)
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            weight += 0.02 * torch.sin(torch.arange(weight.numel()) + number).reshape(weight.shape)
    model.save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


def test_the_decoder_that_says_what_it_drafted_runs(tiny_llama, other_llama, tmp_path, monkeypatch):
    source = EXAMPLES["chains"].replace('"TARGET"', repr(str(tiny_llama))).replace('"DRAFT"', repr(str(other_llama)))
    (tmp_path / "chains_of_the_page.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    asked = ask(find_callable("chains_of_the_page:answer"), [1, 2, 3], 12, 0, 16)
    assert len(asked.tokens) == 12
    assert all(len(step.drafted) == 3 for step, _ in asked.steps)
    assert any(step.accepted for step, _ in asked.steps)


def test_the_engine_with_options_of_its_own_runs(tiny_llama, other_llama, tmp_path, monkeypatch):
    source = EXAMPLES["generating"].replace('"TARGET"', repr(str(tiny_llama))).replace('"DRAFT"', repr(str(other_llama)))
    (tmp_path / "generating_of_the_page.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    asked = ask(find_callable("generating_of_the_page:answer"), [1, 2, 3], 12, 0, 16)
    assert any(step.accepted for step, _ in asked.steps)
