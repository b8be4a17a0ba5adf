"""Tokens and their log-probabilities in the words of OpenAI's interface."""

from collections.abc import Iterable, Sequence
from typing import Any

from specdec.interfaces.results import TokenLogprobs
from specdec.interfaces.text_codec import TextCodec


class TokenWords:
    """How tokens are named in log-probabilities: by their text, or as token_id:N."""

    def __init__(self, codec: TextCodec | None, *, by_id: bool = False) -> None:
        self._codec = codec
        self._by_id = by_id or codec is None

    def word(self, token: int) -> str:
        """A token by itself."""
        if self._by_id or self._codec is None:
            return f"token_id:{token}"
        return self._codec.special_tokens.get(token) or self._codec.decode([token])

    def chat(self, logprobs: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """`logprobs` of a choice of /v1/chat/completions."""
        content = [
            {**self._named(one.token, one.logprob), "top_logprobs": [self._named(*pair) for pair in one.top]}
            for one in logprobs
        ]
        return {"content": content, "refusal": None}

    def completion(self, logprobs: Sequence[TokenLogprobs], first_offset: int) -> dict[str, Any]:
        """`logprobs` of a choice of /v1/completions. first_offset: characters of text before the first token."""
        words = [self.word(one.token) for one in logprobs]
        offsets, offset = [], first_offset
        for word in words:
            offsets.append(offset)
            offset += len(word)
        return {
            "tokens": words,
            "token_logprobs": [max(one.logprob, LEAST) for one in logprobs],
            "top_logprobs": [{self.word(token): max(logprob, LEAST) for token, logprob in one.top} for one in logprobs],
            "text_offset": offsets,
        }

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        word = self.word(token)
        return {"token": word, "logprob": max(logprob, LEAST), "bytes": list(word.encode("utf-8", "replace"))}


LEAST = -9999.0
"""What stands for the logarithm of zero, which JSON cannot hold: OpenAI's own value."""
