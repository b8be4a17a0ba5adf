"""What can be done for a request outside of the decode thread: its prompt's ids, its checks, its grammar."""

import asyncio
import copy
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request, prompt_ids, refuse_uncovered
from specdec.decoding.sequence import prepare, stop_rules
from specdec.decoding.structured_output import Grammars, refuse_formats
from specdec.errors import SpecError
from specdec.interfaces.text_codec import TextCodec

SHORT = 4096
"""Characters or ids of prompts that are encoded in the event loop's own thread, in a millisecond or two."""

COMPILERS = 4
"""Grammars that are compiled at once."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A request of ids, with its grammar as a logits processor. limit: new tokens that the context leaves room for."""

    request: Request
    limit: int

    @property
    def tokens(self) -> int:
        """Of prompt and answer, at most."""
        return len(self.request.prompt) + self.limit


class Preparation:
    """Makes requests ready, one after another.

    A tokenizer keeps settings between its calls, so that the decode thread has the decoder's and this has a copy.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._codec = _copy(decoder.target.codec)
        self._grammars = Grammars(decoder.target)
        self._free = threading.Lock()
        self._encoding: Executor = ThreadPoolExecutor(1, "specdec prepare")
        self._compiling: Executor = ThreadPoolExecutor(COMPILERS, "specdec compile")

    def close(self) -> None:
        """End the threads; what is still compiled is not waited for."""
        for pool in (self._encoding, self._compiling):
            pool.shutdown(wait=False, cancel_futures=True)

    async def encode(self, requests: list[Request]) -> list[Ready]:
        """The requests with ids and checked: short ones at once, since to change threads costs more.

        Raises SpecdecError for one that cannot be served.
        """
        if sum(_size(request.prompt) for request in requests) <= SHORT and self._free.acquire(blocking=False):
            try:
                return [self._encoded(request) for request in requests]
            finally:
                self._free.release()
        return await asyncio.wrap_future(self._encoding.submit(self._encoded_in_turn, requests))

    def _encoded_in_turn(self, requests: list[Request]) -> list[Ready]:
        with self._free:
            return [self._encoded(request) for request in requests]

    def compile(self, ready: list[Ready]) -> "Future[list[Ready]]":
        """The requests with processors in place of their response formats."""
        return self._compiling.submit(lambda: [self._compiled(one) for one in ready])

    def _encoded(self, request: Request) -> Ready:
        target, sampling = self._decoder.target, self._decoder.sampling
        refuse_uncovered([request], sampling, self._decoder.certificate)
        refuse_formats([request], self._decoder.verifier)
        ids = prompt_ids(request, self._codec)
        plain = replace(request, prompt=ids, chat_template_kwargs={}, continue_final_message=False, control_tokens="allow")
        _, limit, _ = prepare(plain, target, sampling)
        if limit < 1:
            raise SpecError(f"the prompt has {len(ids)} tokens; the target's context holds {target.facts.context}")
        return Ready(plain, limit)

    def _compiled(self, ready: Ready) -> Ready:
        request, target = ready.request, self._decoder.target
        if request.response_format is None:
            return ready
        ids = stop_rules(request, ready.limit, target).ids
        masks = self._grammars.masks(request, prompt_length=len(request.prompt), stop_ids=ids)
        return Ready(replace(request, response_format=None, processors=masks[0]), ready.limit)


def _size(prompt: Any) -> int:
    """Characters of a text or a conversation, or ids."""
    if isinstance(prompt, str) or not prompt or not isinstance(prompt[0], Mapping):
        return len(prompt)
    return sum(len(str(turn.get("content", ""))) for turn in prompt)


def _copy(codec: TextCodec | None) -> TextCodec | None:
    try:
        return copy.deepcopy(codec)
    except Exception:
        return codec
