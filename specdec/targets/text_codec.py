"""Text to ids and back by a transformers tokenizer."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from specdec.errors import TargetMismatch
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat, TextCodec
from specdec.targets.chat_template import ChatTemplate

PROBE = "a"
"""A text that shows which tokens a tokenizer puts in front."""


class TokenizerCodec(TextCodec):
    """A transformers tokenizer; special tokens are left out of texts, and no spaces are tidied away."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)

    def encode(self, text: str, *, opens: bool = True, escape_control_tokens: bool = False) -> list[int]:
        ids = self._bare(text, escape=escape_control_tokens)
        opening = self._opening if opens else ()
        return ids if tuple(ids[:1]) == opening[:1] else [*opening, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        kept = [token for token in ids if token not in self.special_tokens]
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @cached_property
    def special_tokens(self) -> Mapping[int, str]:
        return special_tokens(self._tokenizer)

    @cached_property
    def control_tokens(self) -> Collection[str]:
        template = self._template.text or ""
        added = (token.content for token in getattr(self._tokenizer, "added_tokens_decoder", {}).values())
        return frozenset({*self.special_tokens.values(), *(text for text in added if text.strip() and text in template)})

    @property
    def chat_template(self) -> str | None:
        return self._template.text

    def chat(self, messages: Sequence[Mapping[str, str]], chat_format: ChatFormat = PLAIN_CHAT) -> list[int]:
        return list(self._template.apply(messages, chat_format, add_generation_prompt=True)["input_ids"])

    def vocabulary(self) -> Mapping[str, int]:
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    def tokenizer_json(self) -> str | None:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        return json.dumps({**json.loads(backend.to_str()), "truncation": None, "padding": None})

    @cached_property
    def _opening(self) -> tuple[int, ...]:
        """What the tokenizer puts in front of a text."""
        bare, whole = self._bare(PROBE), list(self._tokenizer(PROBE)["input_ids"])
        places = [at for at in range(len(whole)) if whole[at : at + len(bare)] == bare]
        return tuple(whole[: places[0]]) if places else ()

    def _bare(self, text: str, *, escape: bool = False) -> list[int]:
        options = {"split_special_tokens": True} if escape else {}
        ids = list(self._tokenizer(text, add_special_tokens=False, **options)["input_ids"])
        if escape and (left := [self.special_tokens[token] for token in ids if token in self.special_tokens]):
            raise TargetMismatch(f"this tokenizer cannot write {left[0]!r} as ordinary text; control_tokens: refuse would work")
        return ids


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Id -> text of the tokens that are no part of what is said."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {token: one.content for token, one in added.items() if one.special}
    rest = [token for token in tokenizer.all_special_ids if token not in special]
    return {**special, **dict(zip(rest, tokenizer.convert_ids_to_tokens(rest), strict=True))}
