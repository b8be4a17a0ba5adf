"""What a model's config alone tells: whether it can be decoded, whether it can score trees, and which masks it wants."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import TargetDeclaration, context_in_words
from specdec.nn.tree_mask import additive
from specdec.targets.context import context_of

ATTENTION_KINDS = ("sdpa", "eager")
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
MASKED_LAYERS = frozenset({"full_attention", "sliding_attention"})
RECURRENT_LAYERS = frozenset(
    {"linear_attention", "conv", "mamba", "mamba2", "recurrent", "hybrid", "hybrid_sliding", "rwkv", "mlstm", "slstm"}
)
RECURRENT_MODELS = frozenset(
    {
        "bailing_hybrid",
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "glm5_next",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "mamba",
        "mamba2",
        "minimax",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_next",
        "qwen4_exp",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
        "zaya",
    }
)
ENCODERS = frozenset(
    {
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Types of model that look at what follows a token too, unless their config says `is_decoder`."""
WORKS = (
    "a decoder whose layers are all (full or sliding-window) attention, such as Llama, Qwen3, Gemma 3 or Mistral, would work"
)


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """Which attention masks a model takes. windows: by name of layer type, the window in tokens, None for none.

    by_layer_type: the model takes a dict of masks, one per layer type; else one mask for all layers.
    """

    windows: dict[str, int | None]
    by_layer_type: bool

    @property
    def longest_window(self) -> int | None:
        """The widest sliding window; None where nothing slides."""
        return max((window for window in self.windows.values() if window is not None), default=None)


def has_experts(config: Any) -> bool:
    """Whether each token is routed to some of several experts."""
    return any((getattr(text_config(config), name, None) or 0) > 1 for name in EXPERT_COUNTS)


def text_config(config: Any) -> Any:
    """The language model's part of a config that may hold more than one model. Raises TargetMismatch where it is no config."""
    text = config.get_text_config(decoder=True)
    if not isinstance(getattr(text, "model_type", None), str):
        raise TargetMismatch(f"the config names a {type(text).__name__} as its language model, expected a config of its own")
    return text


def mask_plan(config: Any) -> MaskPlan:
    """The masks that a model of this config takes; sliding windows as transformers resolves them.

    Raises TargetMismatch for a window that is no number of tokens.
    """
    text = text_config(config)
    window = getattr(text, "sliding_window", None)
    if window is not None and not isinstance(window, int):
        raise TargetMismatch(f"the config has a sliding_window of {window!r}, expected a whole number of tokens")
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        slides = window is not None and getattr(text, "use_sliding_window", True)
        return MaskPlan({"all": window if slides else None}, by_layer_type=False)
    windows = {kind: window if kind == "sliding_attention" else None for kind in dict.fromkeys(kinds)}
    return MaskPlan(windows, by_layer_type=len(windows) > 1)


def recurrence(config: Any) -> str | None:
    """Why a rejected draft would leave a trace in the model's state; None if it would not."""
    text = text_config(config)
    kinds = [kind for kind in getattr(text, "layer_types", None) or () if kind in RECURRENT_LAYERS]
    if kinds:
        return f"{len(kinds)} of its layers are '{kinds[0]}' layers, whose state cannot forget a rejected draft; {WORKS}"
    model_types = {str(getattr(c, "model_type", "")) for c in (config, text)}
    recurrent = sorted(model_types & RECURRENT_MODELS)
    if recurrent and not getattr(text, "layer_types", None):
        return f"'{recurrent[0]}' models have recurrent layers, whose state cannot forget a rejected draft; {WORKS}"
    return None


def no_decoding_because(config: Any, attention: str) -> str | None:
    """Why this model cannot be decoded here, and what would work; None if nothing is known against it."""
    if attention not in ATTENTION_KINDS:
        return (
            f"attention '{attention}' takes no mask of one's own, so it can neither score trees nor ragged batches; "
            "attention: sdpa (or eager) would work"
        )
    if getattr(config, "is_encoder_decoder", False):
        return f"'{config.model_type}' is an encoder-decoder model; a decoder-only causal language model would work"
    if (reason := recurrence(config) or _no_causal_model(config)) is not None:
        return reason
    if attention == "sdpa" and getattr(text_config(config), "attn_logit_softcapping", None) is not None:
        return "its attention scores are soft-capped, which sdpa cannot do; attention: eager would work"
    return None


def _no_causal_model(config: Any) -> str | None:
    """Why this config is of no model that predicts the next token from the earlier ones alone."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = text_config(config)
    encodes = config.model_type in ENCODERS and not getattr(config, "is_decoder", False)
    encodes = encodes or (config.model_type == "xlm" and not config.causal)
    if encodes or getattr(text, "use_bidirectional_attention", None) is True or getattr(text, "is_causal", True) is False:
        return f"'{config.model_type}' is an encoder, whose tokens see those that follow; {WORKS}"
    if (
        "AutoModelForCausalLM" not in (getattr(config, "auto_map", None) or ())
        and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    ):
        return f"transformers has no causal language model of type '{config.model_type}'; {WORKS}"
    return None


def no_trees_because(config: Any) -> str | None:
    """Why a model of this config can score chains only; None if nothing is known against trees."""
    text = text_config(config)
    if getattr(text, "alibi", False) or text.model_type in ("bloom", "mpt"):
        return "its ALiBi attention counts distances by cache slot, not by position"
    if "local" in (getattr(text, "attention_layers", None) or ()):
        return "its local attention counts its window by cache slot, not by position"
    strange = [kind for kind in getattr(text, "layer_types", None) or () if kind not in MASKED_LAYERS]
    return f"there is no tree mask for '{strange[0]}' layers" if strange else None


def declaration(
    config: Any, *, attention: str, max_context: int | None, refused_because: str | None = None
) -> TargetDeclaration:
    """Everything that the config tells. refused_because: what tells against a mode that was asked for."""
    text = text_config(config)
    refused = no_decoding_because(config, attention) or refused_because
    return TargetDeclaration(
        vocab_size=getattr(text, "vocab_size", None),
        num_layers=getattr(text, "num_hidden_layers", None),
        max_positions=context_of(text, max_context).max_positions,
        no_trees_because=no_trees_because(config) if refused is None else None,
        no_decoding_because=refused,
        hidden_size=getattr(text, "hidden_size", None),
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """max_positions: None for unbounded. no_trees_because: set where the model was seen to score only chains right.

    capped_because: why the context ends there, where the model itself goes further.
    """

    max_positions: int | None
    prefill_chunk: int
    no_trees_because: str | None = None
    capped_because: str | None = None

    @property
    def context(self) -> str:
        """The context in words, with what cut it short."""
        return context_in_words(self.max_positions, self.capped_because)


def mask_argument(
    plan: MaskPlan, span: int, dtype: torch.dtype, device: torch.device, draw: Callable[[int | None], Tensor]
) -> Any:
    """One additive mask, or a dict of them by layer type.

    span: the highest position plus one; windows that reach further hide nothing. draw: window -> bool mask.
    """
    drawn: dict[int | None, Tensor] = {}
    masks = {}
    for kind, window in plan.windows.items():
        effective = None if window is None or window >= span else window
        if effective not in drawn:
            drawn[effective] = additive(draw(effective), dtype, device)
        masks[kind] = drawn[effective]
    return masks if plan.by_layer_type else next(iter(masks.values()))
