"""The distribution that everything is held against: one plain causal forward of the unmodified model over a finished text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.config.resolved_spec import ResolvedSpec
from specdec.interfaces.declarations import Features, Kind
from specdec.interfaces.parts import Target
from specdec.interfaces.results import Scored
from specdec.trees.draft_tree import root_only

Text = tuple[Sequence[int], int]
"""All tokens of a text, and the index of the first one whose distribution is wanted (at least 1)."""

FORWARD_TOKENS = 512
"""Of one forward: its logits are kept whole."""


@dataclass(frozen=True, slots=True)
class Reference:
    """rows(texts): by text, [tokens, vocab] logits before each wanted token. words: what it is.

    independent: whether none of our caches, trees and masks had a part in it.
    """

    rows: Callable[[Sequence[Text]], list[Tensor]]
    words: str
    independent: bool


def reference_for(resolved: ResolvedSpec, target: Target, *, dtype: str = "float32") -> Reference:
    """A model of its own for our transformers targets; others answer by whole prefills, token by token."""
    model = _plain_model(resolved, dtype)
    if model is not None:
        return Reference(
            lambda texts: _forwards(model, texts), f"one plain causal forward of the unmodified model in {dtype}", True
        )
    return Reference(
        lambda texts: [_prefills(target, text) for text in texts],
        "prefills of the target itself, without a cache or a tree",
        False,
    )


def _plain_model(resolved: ResolvedSpec, dtype: str) -> "torch.nn.Module | None":
    part = resolved.parts[Kind.TARGET]
    options: Any = part.options
    if part.name == "builtin":
        from specdec.targets.gguf_cache import unpacked_folder
        from specdec.targets.loading import load_model

        return _module(load_model(str(unpacked_folder()), dtype=dtype, device=options.device, attention=options.attention))
    if part.name == "huggingface":
        from specdec.targets.loading import load_model

        return _module(
            load_model(
                options.model,
                dtype=dtype,
                device=options.device,
                attention=options.attention,
                device_map=options.device_map,
                revision=options.revision,
                trust_remote_code=options.trust_remote_code,
            )
        )
    return None


def _module(model: "torch.nn.Module") -> "torch.nn.Module":
    return model.eval().requires_grad_(False)


def _forwards(model: "torch.nn.Module", texts: Sequence[Text]) -> list[Tensor]:
    """Texts of a forward are padded on the right, where a causal model does not look."""
    order = sorted(range(len(texts)), key=lambda n: len(texts[n][0]))
    found: dict[int, Tensor] = {}
    while order:
        part = [order.pop()]
        width = len(texts[part[0]][0])
        while order and width * (len(part) + 1) <= FORWARD_TOKENS:
            part.append(order.pop())
        padded = [[*texts[n][0], *[0] * (width - len(texts[n][0]))] for n in part]
        device = next(model.parameters()).device
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(padded, device=device), use_cache=False).logits
        for n, row in zip(part, logits, strict=True):
            tokens, first = texts[n]
            found[n] = row[first - 1 : len(tokens) - 1].to("cpu", torch.float32, copy=True)
    return [found[n] for n in range(len(texts))]


def _prefills(target: Target, text: Text) -> Tensor:
    tokens, first = text
    prefixes = [list(tokens[:end]) for end in range(first, len(tokens))]
    return torch.stack([target.prefill([prefix], Features()).scored[0].logits[0].cpu() for prefix in prefixes])


def one_by_one(target: Target, text: Sequence[int], first: int, features: Features) -> dict[int, Scored]:
    """By place in `text`, from `first` (at least 1) on, the answer after that token: plain decoding's forwards."""
    state = target.prefill([list(text[:first])], features).state
    found = {}
    for place in range(first, len(text)):
        found[place] = target.score(state, [root_only(text[place], place)])[0]
        target.commit(state, [[]])
    return found
