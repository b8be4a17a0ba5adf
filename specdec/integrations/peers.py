"""Engines by name, as callables that `verify` puts to the test."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec.bench.baselines import ASSISTED, GENERATE, LOOKUP, peer_of, reference_model, runs_on_transformers
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedPart, ResolvedSpec
from specdec.errors import SpecError
from specdec.interfaces.declarations import Kind
from specdec.losslessness.external.callables import Answering
from specdec.losslessness.real_prompts import replanned
from specdec.sampling.params import SamplingParams

if TYPE_CHECKING:
    from specdec.integrations.openai_endpoint import Endpoint

MTP = "transformers-mtp"

NAMES = f"{GENERATE}, {LOOKUP}[-N], {ASSISTED}, {MTP}, and endpoints as http://HOST/v1#MODEL"

KEY = "OPENAI_API_KEY"
"""Environment variable with the key that is sent to endpoints."""

PASSED_ON = {"temperature", "top_k", "top_p", "min_p", "seed"}
"""Fields of `sampling` that an engine of others is given; seeds are numbered from the seed of the proof."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine that is asked for by name. assistant: a draft model in float32, for those that need one."""

    name: str
    assistant: ResolvedPart | None = None


def peer_callable(peer: Peer, resolved: ResolvedSpec, catalog: Catalog) -> Answering:
    """The engine with the target's model, loaded in float32. Raises SpecError where it cannot run this spec."""
    sampling = resolved.spec.sampling
    _check_sampling(peer.name, sampling)
    make = _maker(peer)
    exact = replanned(resolved, catalog, dtype="float32")
    return make(exact.parts[Kind.TARGET], sampling)


def _check_sampling(name: str, sampling: SamplingParams) -> None:
    """Raise SpecError for what would not reach the engine."""
    more = sorted(sampling.model_dump(exclude_defaults=True).keys() - PASSED_ON)
    if more:
        raise SpecError(
            f"--peer {name}: sampling.{more[0]} is not passed on; it takes {', '.join(sorted(PASSED_ON - {'draft'}))}"
        )


def _maker(peer: Peer) -> Callable[[ResolvedPart, SamplingParams], Answering]:
    if peer.name == GENERATE or peer.name == MTP or re.match(rf"{LOOKUP}|{ASSISTED}", peer.name):
        return lambda target, sampling: _transformers(peer, target, sampling)
    if re.match("https?://", peer.name):
        return lambda target, sampling: _endpoint(peer.name, sampling)
    raise SpecError(f"--peer: got '{peer.name}'; there are {NAMES}")


def _transformers(peer: Peer, target: ResolvedPart, sampling: SamplingParams) -> Answering:
    from specdec.integrations.transformers import Generating

    if not runs_on_transformers(target):
        raise SpecError(
            f"--peer {peer.name}: target '{target.name}' is no transformers model; {GENERATE} needs a folder or hub id"
        )
    if peer.name == MTP:
        return Generating(reference_model(target), sampling, use_mtp=True)
    known = peer_of(peer.name)
    if known.assisted and peer.assistant is None:
        raise SpecError(f"--peer {peer.name} needs a draft model: name one by --assistant")
    if known.assisted and peer.assistant is not None:
        return Generating(reference_model(target), sampling, assistant_model=reference_model(peer.assistant))
    return Generating(reference_model(target), sampling, prompt_lookup_num_tokens=known.lookup)


def endpoint_engine(name: str) -> Callable[[SamplingParams], Callable[[Sequence[int], int, int], list[int]]]:
    """For a sampling, what has the endpoint `http://HOST/v1#MODEL` answer (prompt ids, number of tokens, seed) with ids.

    Raises SpecError for another name, later for a sampling that is not passed on, and where the endpoint does not answer.
    """
    _endpoint(name, SamplingParams())

    def under(sampling: SamplingParams) -> Callable[[Sequence[int], int, int], list[int]]:
        _check_sampling(name, sampling)
        asked = _endpoint(name, sampling)
        return lambda ids, n, seed: list(asked(ids, n, seed).tokens)

    return under


def _endpoint(name: str, sampling: SamplingParams) -> "Endpoint":
    from specdec.integrations.openai_endpoint import Endpoint

    url, mark, model = name.partition("#")
    if not (mark and model):
        raise SpecError(f"--peer: got '{name}'; the model's name is missing: {url}#MODEL")
    return Endpoint(url, model, sampling, os.environ.get(KEY))
