"""Which tokens end an answer, from what a model's configs and its tokenizer say."""

import warnings
from collections.abc import Iterable
from typing import Any

from specdec.errors import SpecdecWarning
from specdec.targets.capability import text_config


def stop_ids(model: Any, tokenizer: Any | None, vocab_size: int) -> frozenset[int]:
    """The end-of-sequence ids of the generation config, else of the config, and the tokenizer's.

    Ids that are no tokens are left out: -1, which says that there is none, and, with a warning, those beyond the vocabulary.
    """
    named = _named(model)
    strangers = sorted(token for token in named if token >= vocab_size)
    if strangers:
        ids = ", ".join(map(str, strangers))
        warnings.warn(
            f"eos_token_id {ids} of the model's config is outside of its vocabulary of {vocab_size} and stops nothing",
            SpecdecWarning,
            stacklevel=3,
        )
    found = _within(named, vocab_size)
    own = _within([getattr(tokenizer, "eos_token_id", None)], vocab_size)
    if tokenizer is not None and own - found:
        warnings.warn(
            f"the model's config does not name {tokenizer.eos_token!r} (id {min(own)}), with which its tokenizer ends a text; "
            "it stops answers too, unless ignore_eos is set",
            SpecdecWarning,
            stacklevel=3,
        )
    return found | own


def _named(model: Any) -> list[int]:
    for config in (getattr(model, "generation_config", None), model.config, text_config(model.config)):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return [ids] if isinstance(ids, int) else [token for token in ids if isinstance(token, int)]
    return []


def _within(ids: Iterable[Any], vocab_size: int) -> frozenset[int]:
    return frozenset(token for token in ids if isinstance(token, int) and 0 <= token < vocab_size)
