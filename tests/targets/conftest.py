"""Tiny random transformers models, and the plain forward that everything is compared with."""

import random
from contextlib import contextmanager

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)

from specdec.errors import TargetMismatch
from specdec.targets.assembly import RunSettings, assemble
from specdec.trees.draft_tree import Draw, TreeSketch

VOCAB = 96
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**COMMON),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "mixtral": lambda: MixtralConfig(**COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "qwen3_moe": lambda: Qwen3MoeConfig(**COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=8),
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=8, head_dim=8),
    "gemma3": lambda: Gemma3TextConfig(
        **{**COMMON, "num_hidden_layers": 4},
        head_dim=12,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        query_pre_attn_scalar=12,
        final_logit_softcapping=5.0,
    ),
    "gemma2": lambda: Gemma2Config(**COMMON, head_dim=8, sliding_window=8, query_pre_attn_scalar=8),
    "granite": lambda: GraniteConfig(**COMMON, embedding_multiplier=3.0, logits_scaling=4.0, residual_multiplier=0.5),
    "bloom": lambda: BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.25),
}


def tiny_model(kind, dtype=torch.float64, attention="sdpa", seed=0, **changes):
    config = CONFIGS[kind]()
    for name, value in changes.items():
        setattr(config, name, value)
    attention = "eager" if kind == "bloom" else attention
    torch.manual_seed(seed)
    return (
        AutoModelForCausalLM.from_config(config, attn_implementation=attention, experts_implementation="eager").to(dtype).eval()
    )


@pytest.fixture(scope="session")
def make_model():
    return tiny_model


@pytest.fixture(scope="session")
def skip_unless_repeatable():
    """Around the making of a bitwise runtime: a skip where this machine does not repeat bits in this dtype.

    No other refusal is let pass, and none in float64: a wrong forward would be refused too, and no test would notice.
    """

    @contextmanager
    def guard(dtype):
        try:
            yield
        except TargetMismatch as refusal:
            if dtype == torch.float64 or "does not repeat its bits" not in str(refusal):
                raise
            pytest.skip(str(refusal))

    return guard


@pytest.fixture(scope="session")
def make_runtime():
    """(runtime, facts) of a tiny model; not probed unless asked."""
    made = {}
    # transformers imports a model's module on first use: not the time of the test that comes first.
    for kind in CONFIGS:
        tiny_model(kind, attention="eager")

    def make(kind, dtype=torch.float64, attention="sdpa", chunk=512, max_context=None, probe=False):
        key = (kind, dtype, attention, chunk, max_context, probe)
        if key not in made:
            assembled = assemble(tiny_model(kind, dtype, attention), RunSettings(chunk, max_context, probe), kind)
            made[key] = assembled.runtime, assembled.facts
        return made[key]

    return make


@pytest.fixture
def random_tree():
    """A random tree of so many nodes, siblings distinct."""

    def make(nodes, position, seed, deep=0.5):
        source = random.Random(seed)
        sketch, taken = TreeSketch(source.randrange(3, VOCAB), position), set()
        while len(sketch) < nodes:
            parent = len(sketch) - 1 if source.random() < deep else source.randrange(len(sketch))
            token = source.randrange(3, VOCAB)
            if (parent, token) not in taken:
                taken.add((parent, token))
                sketch.add(parent, token)
        return sketch.freeze(Draw.DETERMINISTIC)

    return make


@pytest.fixture
def prompt():
    def make(length, seed=1):
        source = random.Random(seed)
        return [source.randrange(3, VOCAB) for _ in range(length)]

    return make


@pytest.fixture
def plain():
    """[tokens, vocab]: the unmodified model over one whole sequence, without cache, mask or positions."""

    @torch.no_grad()
    def forward(runtime, tokens):
        return runtime.call.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]

    return forward


@pytest.fixture
def path_logits(plain):
    """[nodes, vocab]: each node's logits from a plain forward over its own root-to-node path."""

    def logits(runtime, prefix, tree):
        rows = {}
        for leaf in (node for node in range(len(tree)) if not tree.children[node]):
            logits = plain(runtime, [*prefix, tree.tokens[0], *tree.path_tokens(leaf)])[len(prefix) :]
            rows |= dict(zip([0, *tree.path(leaf)], logits, strict=True))
        return torch.stack([rows[node] for node in range(len(tree))])

    return logits
