"""Tiny random transformers models: Llama-like, GPT-2-like with absolute positions, and one with a window of 8 tokens."""

from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig

from specdec.targets.assembly import RunSettings, assemble
from specdec.targets.huggingface import HuggingFaceTarget

VOCAB = 64
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
GPT2_ENDS = {"bos_token_id": None, "eos_token_id": None}


@cache
def _model(kind: str, positions: int, dtype: torch.dtype, attention: str, device: str):
    config = {
        "llama": lambda: LlamaConfig(**LLAMA, max_position_embeddings=positions),
        "gpt2": lambda: GPT2Config(**GPT2, **GPT2_ENDS, n_positions=positions),
        "window": lambda: MistralConfig(**LLAMA, max_position_embeddings=positions, sliding_window=8),
    }[kind]()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(device, dtype).eval()


@pytest.fixture(scope="session")
def tiny():
    """(target, logits after some tokens by the bare model, without cache, mask or positions)."""

    def make(kind="llama", *, positions=64, dtype=torch.float64, attention="sdpa", max_context=None, chunk=512, device="cpu"):
        model = _model(kind, positions, dtype, attention, device)
        target = HuggingFaceTarget(assemble(model, RunSettings(chunk, max_context, probe=False), kind), None)

        @torch.no_grad()
        def logits_of(tokens):
            return model(input_ids=torch.tensor([list(tokens)], device=device), use_cache=False).logits[0, -1]

        return target, logits_of

    return make


@pytest.fixture(params=["llama", "gpt2", "window"])
def kind(request):
    """Each kind of tiny model in turn."""
    return request.param
