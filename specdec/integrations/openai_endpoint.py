"""An OpenAI-compatible endpoint as a callable: prompts go as ids, and the new ids and their log-probabilities come back.

Of the servers that speak this interface, those of vLLM, SGLang and llama.cpp say which ids they emitted. Text alone would not
do: different ids may have the same text.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specdec.errors import SpecError
from specdec.losslessness.external.instrumented import InstrumentedAnswer
from specdec.sampling.params import SamplingParams

ID_NAME = "token_id:"
"""How vLLM writes an id in place of a token's text."""

TIMEOUT = 300.0
"""Seconds for one answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A callable (prompt ids, n, seed) -> ids and log-probabilities.

    url: up to `/v1`, such as http://localhost:8000/v1. model: its name there. key: what is sent as a bearer token, if anything.
    """

    url: str
    model: str
    sampling: SamplingParams
    key: str | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise SpecError(f"endpoint: got '{self.url}'; expected an address such as http://localhost:8000/v1")

    def __call__(self, ids: Sequence[int], n: int, seed: int) -> InstrumentedAnswer:
        choice = self._ask({**self._sampling(), "prompt": list(ids), "max_tokens": n, "seed": seed & 0x7FFFFFFF})
        return InstrumentedAnswer(_ids(choice), logprobs=_logprobs(choice))

    def _sampling(self) -> dict[str, Any]:
        """Fields beyond OpenAI's own are those of vLLM, SGLang and llama.cpp; servers pass over what they do not know."""
        sampling = self.sampling
        return {
            "model": self.model,
            "temperature": sampling.temperature,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p or 0.0,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        url = f"{self.url.rstrip('/')}/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                found: dict[str, Any] = json.load(answer)["choices"][0]
        except urllib.error.HTTPError as error:
            raise SpecError(f"endpoint {url}: status {error.code}: {error.read(500).decode(errors='replace')}") from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SpecError(f"endpoint {url}: {type(error).__name__}: {error}") from error
        return found


def _ids(choice: dict[str, Any]) -> list[int]:
    """The new ids, in whichever of the servers' forms they come."""
    if choice.get("token_ids") is not None:
        return [int(token) for token in choice["token_ids"]]
    said = choice.get("logprobs") or {}
    names = said.get("tokens") or []
    if names and all(str(name).startswith(ID_NAME) for name in names):
        return [int(str(name).removeprefix(ID_NAME)) for name in names]
    content = said.get("content") or []
    if content and all("id" in token for token in content):
        return [int(token["id"]) for token in content]
    raise SpecError("endpoint: the answer does not say which ids were emitted (token_ids, or logprobs with ids)")


def _logprobs(choice: dict[str, Any]) -> list[float] | None:
    said = choice.get("logprobs") or {}
    content = said.get("content") or []
    found = said.get("token_logprobs") or [token.get("logprob") for token in content]
    return [float(value) for value in found] if found and None not in found else None
