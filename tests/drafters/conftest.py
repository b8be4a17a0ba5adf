"""A tiny random model with draft heads of every kind, trained on nothing: drafts are poor and everything else is the same."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specdec.decoding.decoder import Decoder
from specdec.drafters.block import BlockDrafter
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.eagle3 import Eagle3Drafter
from specdec.drafters.hydra import HydraDrafter
from specdec.drafters.medusa import MedusaDrafter
from specdec.drafters.none import NoDrafter
from specdec.heads.architectures import config_type, new_head
from specdec.heads.block_session import ready_block
from specdec.heads.config import HeadConfig, Inputs, LayerConfig
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.heads.hydra_session import ready_hydra
from specdec.heads.loading import LoadedHead, ready
from specdec.heads.medusa_session import ready_medusa
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions, build_part
from specdec.interfaces.proposals import DraftStart
from specdec.losslessness.exact.enumeration import prove_step
from specdec.sampling.params import SamplingParams
from specdec.targets.assembly import RunSettings, assemble
from specdec.targets.huggingface import HuggingFaceTarget

VOCAB, HIDDEN, LAYERS = 48, 32, (1, 2, 3)
MODEL = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LAYER = {"intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
KINDS = {
    "eagle": {},
    "eagle, unshifted": {"inputs": Inputs.FEATURE_AND_UNSHIFTED_TOKEN},
    "eagle, feature": {"inputs": Inputs.FEATURE},
    "eagle, token": {"inputs": Inputs.TOKEN},
    "eagle, own": {"own_lm_head": True, "draft_vocab_size": 20},
    "eagle, reduced": {"draft_vocab_size": 20, "embedding_scale": 2.0, "feature_scale": 0.5, "fc_bias": False},
    "eagle3": {"layers": LAYERS, "draft_vocab_size": 20, "own_lm_head": True},
    "eagle3, whole": {"layers": (0, 2), "own_lm_head": True},
}
PREFIX = LayerConfig(
    hidden_size=HIDDEN, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5
)
ONE_PASS = {"kind": "block", "layers": (1, 3), "block_size": 4, "mask_token_id": 47}
OTHER_KINDS = {
    "hydra, prefix": {"kind": "hydra", "num_heads": 4, "own_lm_head": True, "draft_vocab_size": 20, "prefix": PREFIX},
    "medusa, borrowed": {"kind": "medusa", "num_heads": 4, "num_blocks": 2, "draft_vocab_size": 20},
    "dflash": {**ONE_PASS, "num_layers": 2},
    "dspark": {**ONE_PASS, "causal": True, "from_anchor": True, "markov_rank": 5, "draft_vocab_size": 20},
}
"""Heads that draft fewer levels than some trees have."""


@cache
def tiny_target(dtype=torch.float64, **changes) -> HuggingFaceTarget:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**MODEL, **changes}), attn_implementation="sdpa").to(dtype).eval()
    return HuggingFaceTarget(assemble(model, RunSettings(16, None, probe=False), "tiny"), None)


def tiny_head(dtype=torch.float64, **changes) -> HeadCheckpoint:
    """Small random weights, so that a draft goes on from its feature, as a trained head does."""
    if "kind" in changes:
        layer = LAYER if changes["kind"] == "block" else {}
        config = config_type(changes["kind"])(**{"hidden_size": HIDDEN, **layer, "vocab_size": VOCAB, **changes})
    else:
        config = HeadConfig(**{"hidden_size": HIDDEN, **LAYER, "vocab_size": VOCAB, **changes})
    head = new_head(config)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.copy_(torch.ones_like(parameter) if "norm" in name else torch.randn(parameter.shape) * 0.15)
            parameter.data = parameter.data.to(dtype)
    head.eval().requires_grad_(False)
    ids = None if config.draft_vocab_size is None else torch.arange(config.draft_vocab_size) * 2 + 1
    own = getattr(head, "lm_head", None)
    return HeadCheckpoint(head, ids, None, None if own is None else own.weight)


@pytest.fixture(scope="session")
def target_of():
    # Loading transformers' model code is not the time of the test that comes first.
    tiny_target()
    return tiny_target


@pytest.fixture(scope="session")
def head_of():
    return tiny_head


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request):
    """What is special about each kind of EAGLE head."""
    return request.param


@pytest.fixture(params=[*KINDS.values(), *OTHER_KINDS.values()], ids=[*KINDS, *OTHER_KINDS])
def any_kind(request):
    """What is special about each kind of head, of any architecture."""
    return request.param


@pytest.fixture(scope="session")
def drafter_of():
    """(drafter, its declaration) of a head of some kind."""

    def make(target, changes, dtype=None):
        dtype = target.facts.dtype if dtype is None else dtype
        checkpoint, device = tiny_head(dtype, **changes), target.facts.device
        if "kind" in changes:
            loaded = LoadedHead(checkpoint, target, dtype, device)
            if changes["kind"] == "block":
                config = checkpoint.config
                declared = DrafterDeclaration(Gives.DISTRIBUTIONS, Features(layers=config.layers), max_depth=config.depths)
                return BlockDrafter(ready_block(loaded)), declared
            medusa = changes["kind"] == "medusa"
            drafter = MedusaDrafter(ready_medusa(loaded)) if medusa else HydraDrafter(ready_hydra(loaded))
            depth = checkpoint.config.num_heads
            return drafter, DrafterDeclaration(Gives.DISTRIBUTIONS, Features(last=True), max_depth=depth)
        drafting = ready(checkpoint, target, dtype=dtype, device=device)
        config = drafting.head.config
        features = Features(layers=config.layers) if config.layers else Features(last=config.inputs.has_feature)
        drafter = Eagle3Drafter(drafting) if config.layers else EagleDrafter(drafting)
        return drafter, DrafterDeclaration(Gives.DISTRIBUTIONS, features)

    return make


@pytest.fixture(scope="session")
def decoder_of():
    """A decoder; drafter: (drafter, declaration), or None for plain decoding."""

    def make(target, drafter, builder, verifier, **sampling) -> Decoder:
        tools = BuildTools(target=target)
        made = build_part(NoDrafter) if drafter is None else drafter[0]
        if drafter is not None:
            made.declaration = drafter[1]
        return Decoder(
            target,
            made,
            build_part(*builder, tools),
            build_part(verifier, PartOptions(), tools),
            sampling=SamplingParams(**sampling),
        )

    return make


class Featured(Drafter):
    """A drafter that is opened with the target's true features, where the enumerator has none."""

    name = "featured"

    def __init__(self, inner, target):
        self._inner, self._target = inner, target
        self.declaration = inner.declaration

    @classmethod
    def declares(cls, options):
        raise NotImplementedError

    @classmethod
    def build(cls, options, tools):
        raise NotImplementedError

    def open(self, starts: Sequence[DraftStart]):
        hidden = [self._target.prefill([start.prompt], Features(last=True, layers=(1, 3))).scored[0].hidden for start in starts]
        return self._inner.open(
            [DraftStart(start.prompt, start.first_token, states) for start, states in zip(starts, hidden, strict=True)]
        )


@pytest.fixture(scope="session")
def proved(target_of, drafter_of, decoder_of):
    """The exact proof of one step with heads of some kind, on a model of three tokens."""

    def prove(kind, builder, verifier):
        target = target_of(vocab_size=3)
        drafter, declared = drafter_of(target, {**kind, "vocab_size": 3})
        drafter.declaration = declared
        decoder = decoder_of(target, (Featured(drafter, target), declared), builder, verifier, temperature=1.0)
        return prove_step(decoder, (0, 2, 1), depth=2)

    return prove
