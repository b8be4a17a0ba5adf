"""One call of an unmodified transformers model: logits at chosen positions and the hidden states that were asked for."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.interfaces.results import HiddenStates
from specdec.nn.kv_cache import LayerShape
from specdec.targets.capability import text_config

HEAD_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""Relative to the largest logit."""

FORWARD_FAULTS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError)
"""What models raise that cannot take the arguments they are called with."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelOutput:
    """logits: [rows, kept, vocab]. hidden: [rows, nodes, ...], of all nodes whatever was kept."""

    logits: Tensor
    hidden: HiddenStates


@dataclass(slots=True, eq=False)
class _Caught:
    """What the hooks of one forward have seen."""

    last: Tensor | None = None
    layers: dict[int, Tensor] = field(default_factory=dict)


class OwnForward(Protocol):
    """A forward of ours that takes the place of the model's own (fused, or compiled)."""

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any, features: Features
    ) -> tuple[Tensor, HiddenStates]:
        """Post-norm states [rows, nodes, hidden], and the hidden states that were asked for."""

    def head(self, states: Tensor) -> Tensor:
        """[..., vocab] logits of post-norm states."""


class ModelCall:
    """A loaded causal language model, and what must be known to call it: learned from one forward of two tokens."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config = model.config
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.num_layers: int = text_config(model.config).num_hidden_layers
        self.layers = _decoder_layers(model, self.num_layers)
        # Some models call the one, some the other.
        self._decoders: set[nn.Module] = {model.get_decoder(), model.base_model} - {model}
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.takes_positions = "position_ids" in parameters
        self._takes_kept = "logits_to_keep" in parameters
        self.decoder: Any = model.get_decoder()
        self.fused: OwnForward | None = None
        self._learn()

    def _learn(self) -> None:
        """Shapes of the cache, columns of the logits, scales of embedding and head."""
        from specdec.targets.cache_adapter import shape_cache

        cache = shape_cache(self.num_layers)
        ids = torch.tensor([[0, 1]], device=self.device)
        try:
            output = self(ids, None, None, cache, Features(last=True, layers=(0,)))
        except torch.OutOfMemoryError:
            raise
        except FORWARD_FAULTS as error:
            raise TargetMismatch(f"a forward of {type(self.model).__name__} fails: {type(error).__name__}: {error}") from error
        self.shapes: list[LayerShape | None] = [layer.kv_shape for layer in cache.layers]
        if not any(self.shapes):
            raise TargetMismatch(f"{type(self.model).__name__} writes no keys and values to its cache")
        self.vocab_size = output.logits.shape[-1]
        last, layers = output.hidden.last, output.hidden.layers
        self.hidden_size = None if last is None else last.shape[-1]
        self._embed_scale = 1.0 if layers is None else _scale(self.model.get_input_embeddings()(ids)[0], layers[0, :, 0])
        self.no_head_because = self._head_fault(output)

    def _head_fault(self, output: ModelOutput) -> str | None:
        if output.hidden.last is None or self.model.get_output_embeddings() is None:
            return "the model's last hidden state or its output embeddings were not found"
        ours, theirs = self._head(output.hidden.last[0]).double(), output.logits[0].double()
        if ours.shape != theirs.shape:
            return f"its output embeddings give {ours.shape[-1]} logits where the model gives {theirs.shape[-1]}"
        fault = float((ours - theirs).abs().max())
        if not fault <= HEAD_TOLERANCE[self.dtype] * max(float(theirs.abs().max()), 1e-3):
            return f"logits computed from its last hidden state differ from its own by {fault:.2g}"
        return None

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor | None,
        mask: Any,
        cache: Any,
        features: Features,
        kept: int | Tensor = 0,
    ) -> ModelOutput:
        """Forward ids [rows, nodes].

        mask: additive [rows, 1, nodes, slots], or a dict of them by layer type, or None for the model's own causal mask.
        kept: 0 for logits at all nodes, n for the last n, or an index of nodes.
        """
        if self.fused is not None and positions is not None and isinstance(mask, Tensor):
            return self._fused(self.fused, ids, positions, mask, cache, features, kept)
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, self._cache_name: cache, "use_cache": True}
        if self.takes_positions and positions is not None:
            arguments["position_ids"] = positions
        if self._takes_kept:
            arguments["logits_to_keep"] = kept
        with torch.inference_mode(), self._catching(features) if features else nullcontext(_Caught()) as caught:
            logits = self.model(**arguments).logits
        logits = logits if self._takes_kept else _pick(logits, kept)
        if not features:
            return ModelOutput(logits, HiddenStates())
        # Copies made outside of inference mode, so that a head may be trained on them.
        last = caught.last.clone() if features.last and caught.last is not None else None
        layers = [caught.layers[layer].to(self.device) for layer in features.layers]
        return ModelOutput(logits, HiddenStates(last, torch.stack(layers, 2) if layers else None))

    def _fused(
        self,
        forward: OwnForward,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: Any,
        features: Features,
        kept: int | Tensor,
    ) -> ModelOutput:
        with torch.inference_mode():
            last, hidden = forward(ids, positions, mask, cache, features)
            logits = forward.head(_pick(last, kept))
        return ModelOutput(
            logits, HiddenStates(*(None if part is None else part.clone() for part in (hidden.last, hidden.layers)))
        )

    @contextmanager
    def _catching(self, features: Features) -> Iterator[_Caught]:
        caught = _Caught()

        def before(layer: int) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                caught.layers[layer] = args[0] if args else kwargs["hidden_states"]

            return hook

        def after_last_layer(_: nn.Module, __: Any, output: Any) -> None:
            caught.layers[self.num_layers] = output if isinstance(output, Tensor) else output[0]

        def after_decoder(_: nn.Module, __: Any, output: Any) -> None:
            caught.last = getattr(output, "last_hidden_state", caught.last)

        handles = [
            self.layers[layer].register_forward_pre_hook(before(layer), with_kwargs=True)
            for layer in features.layers
            if layer < self.num_layers
        ]
        if self.num_layers in features.layers:
            handles.append(self.layers[-1].register_forward_hook(after_last_layer))
        if features.last:
            handles += [decoder.register_forward_hook(after_decoder) for decoder in self._decoders]
        try:
            yield caught
        finally:
            for handle in handles:
                handle.remove()

    def embed(self, ids: Tensor) -> Tensor:
        """[n, hidden] input embeddings as the first layer gets them, positions left out."""
        embedded: Tensor = self.model.get_input_embeddings()(ids.to(self.device))
        return embedded if self._embed_scale == 1.0 else embedded * embedded.new_tensor(self._embed_scale)

    def head(self, hidden: Tensor) -> Tensor:
        """[n, vocab] logits of post-norm hidden states. Raises TargetMismatch where the model's own rule is unknown."""
        if self.no_head_because is not None:
            raise TargetMismatch(f"{type(self.model).__name__} lends no head: {self.no_head_because}")
        return self._head(hidden)

    def _head(self, hidden: Tensor) -> Tensor:
        text = text_config(self.config)
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        for name in ("logit_scale", "lm_head_multiplier"):
            if isinstance(factor := getattr(text, name, None), float):
                logits = logits * factor
        if isinstance(divisor := getattr(text, "logits_scaling", None), int | float):
            logits = logits / divisor
        if (cap := getattr(text, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits


def _pick(logits: Tensor, kept: int | Tensor) -> Tensor:
    return logits[:, kept] if isinstance(kept, Tensor) else logits[:, -kept:] if kept else logits


def _scale(embedded: Tensor, entering: Tensor) -> float:
    """The factor between embeddings and what enters the first layer; 1 where that is no mere factor (learned positions)."""
    embedded, entering = embedded.double(), entering.double()
    factor = float((embedded * entering).sum() / (embedded * embedded).sum().clamp_min(1e-30))
    fits = float((entering - factor * embedded).norm()) <= 1e-2 * float(entering.norm())
    return factor if fits and abs(factor - 1) > 1e-3 else 1.0


def _decoder_layers(model: nn.Module, num_layers: int) -> nn.ModuleList:
    """The shallowest list of as many modules as the config has layers."""
    lists = [
        (name.count("."), module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    ]
    if not lists:
        raise TargetMismatch(f"{type(model).__name__}: no list of its {num_layers} decoder layers was found")
    return min(lists, key=lambda pair: pair[0])[1]
