"""Text to ids and back by a transformers tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import TargetMismatch
from specdec.interfaces.parts import TextCodec


class TokenizerCodec(TextCodec):
    """A transformers tokenizer; special tokens are left out of texts, and no spaces are tidied away."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if self._tokenizer.chat_template is None:
            raise TargetMismatch("this tokenizer has no chat template; give the prompt as text, or name an instruct model")
        conversation = [dict(message) for message in messages]
        encoded = self._tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    def vocabulary(self) -> Mapping[str, int]:
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary
