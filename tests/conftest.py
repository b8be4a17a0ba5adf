"""Decoders of every shape, and the plain loop that they are all compared with."""

import resource
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import settings

from specdec.decoding.decoder import Decoder
from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.declarations import BuilderDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, PartOptions, Target, build_part
from specdec.interfaces.probability_table import RandomRows
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
"""How long an example takes says nothing on a machine that does other work, or where the first one imports a library."""

collect_ignore = ["plugin_example"]
"""A package of its own: test_plugin_example.py installs it and runs its tests."""


@dataclass(frozen=True)
class Parts:
    """A builder with its options, and a verifier that fits it."""

    builder: type
    options: PartOptions
    verifier: type


STRATEGIES = {
    "chain, match": Parts(Chain, ChainOptions(length=4), Match),
    "chain, point_mass": Parts(Chain, ChainOptions(length=4), PointMass),
    "sampled chain, chain": Parts(Chain, ChainOptions(length=4, draw="sampled"), ChainRule),
    "fixed, match": Parts(Fixed, FixedOptions(widths=[3, 2, 1]), Match),
    "fixed, point_mass": Parts(Fixed, FixedOptions(widths=[3, 2, 1]), PointMass),
    "dynamic, match": Parts(Dynamic, DynamicOptions(width=3, depth=4, nodes=10), Match),
    "wor tree, multi_round": Parts(Sampled, SampledOptions(widths=[3, 2, 1]), MultiRound),
    "iid tree, multi_round": Parts(Sampled, SampledOptions(widths=[3, 2, 1], replacement=True), MultiRound),
    "iid tree, match": Parts(Sampled, SampledOptions(widths=[2, 2], replacement=True), Match),
}


def declared(parts: Parts) -> BuilderDeclaration:
    """What the builder declares."""
    return parts.builder.declares(parts.options)


@pytest.fixture(params=STRATEGIES.values(), ids=STRATEGIES.keys())
def strategy(request) -> Parts:
    """Each strategy in turn."""
    return request.param


@pytest.fixture(params=["chain, match", "fixed, point_mass", "wor tree, multi_round"])
def shape(request) -> Parts:
    """A strategy of each shape, for models that cost something."""
    return STRATEGIES[request.param]


@pytest.fixture(params=[name for name in STRATEGIES if name.endswith(" match")])
def matching(request) -> Parts:
    """Each strategy whose seeded output equals plain decoding's."""
    return STRATEGIES[request.param]


@pytest.fixture(params=[name for name, parts in STRATEGIES.items() if Gives.CANDIDATES in declared(parts).needs])
def ranking(request) -> Parts:
    """Each strategy that needs no q, and so takes any drafter."""
    return STRATEGIES[request.param]


@pytest.fixture(scope="session")
def parts_of():
    """Parts by hand."""
    return Parts


@pytest.fixture(scope="session")
def chain_of():
    """A chain of so many tokens under `match`."""
    return lambda length: Parts(Chain, ChainOptions(length=length), Match)


@pytest.fixture
def compose():
    """A decoder of parts; the drafter is a mode of the tabular one, its options, or a drafter that is already built."""

    def make(target: Target, parts: Parts, drafter="mixed", *, sampling=None, on_step=None) -> Decoder:
        tools = BuildTools(target=target)
        if isinstance(drafter, str):
            drafter = TabularDrafterOptions(mode=drafter)
        if isinstance(drafter, TabularDrafterOptions):
            drafter = build_part(TabularDrafter, drafter, tools)
        else:
            drafter.declaration = type(drafter).declares(type(drafter).Options.model_construct(model="target"))
        return Decoder(
            target,
            drafter,
            build_part(parts.builder, parts.options, tools),
            build_part(parts.verifier, PartOptions(), tools),
            sampling=sampling,
            on_step=on_step,
        )

    return make


@pytest.fixture
def table():
    """A pseudo-random tabular target, or one with the rows given."""

    def make(vocab=8, *, seed=0, order=2, sharpness=1.0, rows=None, **options) -> TabularTarget:
        random = RandomRows(order=order, seed=seed, sharpness=sharpness)
        return TabularTarget(TabularTargetOptions(vocab=vocab, rows=rows or {}, random=random, **options))

    return make


@pytest.fixture
def counter():
    """A target that counts upwards: after token t comes t + 1, with probability 0.9."""

    def make(vocab=12, **options) -> TabularTarget:
        rows = {}
        for token in range(vocab):
            row = [0.1 / (vocab - 1)] * vocab
            row[(token + 1) % vocab] = 0.9
            rows[f"*,{token}"] = row
        return TabularTarget(TabularTargetOptions(vocab=vocab, rows=rows, **options))

    return make


class WatchedTarget(Target):
    """A target that does what another one does, and remembers how it was called.

    prefills: rows by call. trees: the trees of every `score` call.
    """

    name = "watched"
    Options = PartOptions

    def __init__(self, inner: Target, codec=None) -> None:
        self.inner = inner
        self.prefills: list[int] = []
        self.trees: list[list] = []
        self._codec = codec

    @classmethod
    def declares(cls, options):
        raise NotImplementedError

    @classmethod
    def build(cls, options, tools):
        raise NotImplementedError

    @property
    def facts(self):
        return self.inner.facts

    @property
    def codec(self):
        return self._codec or self.inner.codec

    def prefill(self, prompts, features):
        self.prefills.append(len(prompts))
        return self.inner.prefill(prompts, features)

    def score(self, state, trees):
        self.trees.append(list(trees))
        return self.inner.score(state, trees)

    def commit(self, state, paths):
        self.inner.commit(state, paths)

    def keep(self, state, rows):
        self.inner.keep(state, rows)

    def fork(self, state, copies):
        return self.inner.fork(state, copies)

    def join(self, state, other):
        self.inner.join(state, other)

    def embed(self, ids):
        return self.inner.embed(ids)

    def head(self, hidden):
        return self.inner.head(hidden)


@pytest.fixture(scope="session")
def watched():
    return WatchedTarget


@dataclass(frozen=True)
class Finished:
    """Everything that the end of a request is judged by."""

    ids: tuple[int, ...]
    text: str | None
    reason: str
    stopped_by: object
    prompt_tokens: int
    completion_tokens: int
    logprobs: int
    prefixes: tuple[tuple[int, ...], ...] = field(default=(), compare=False)


def _argmax(logits, tokens):
    return int(torch.as_tensor(logits).argmax())


@pytest.fixture
def next_logits():
    """What a target says after some tokens, by a prefill of its own: no tree, no cache, no batch."""

    def make(target: Target) -> Callable[[Sequence[int]], torch.Tensor]:
        return lambda tokens: target.prefill([list(tokens)], Features()).scored[0].logits[0]

    return make


@pytest.fixture
def plain_loop():
    """One token at a time, everything looked at from scratch after each."""

    def run(logits_of, prompt, *, limit, stop_ids=(), stop=(), decode=None, pick=_argmax, context=None) -> Finished:
        limit = limit if context is None else min(limit, context - len(prompt))
        ids, text, reason, cause, prefixes = [], None, "length", None, []
        while len(ids) < limit and cause is None:
            tokens = [*prompt, *ids]
            prefixes.append(tuple(tokens))
            ids.append(pick(logits_of(tokens), tokens))
            text = decode(ids) if decode is not None else None
            found = [(text.find(s), -len(s), s) for s in stop if isinstance(s, str) and text is not None and s in text]
            endings = [tuple(s) for s in stop if not isinstance(s, str) and tuple(ids[-len(s) :]) == tuple(s)]
            if ids[-1] in stop_ids:
                cause = ids[-1]
                text = decode(ids[:-1]) if decode is not None else None
            elif endings:
                cause = endings[0]
            elif found:
                cause = min(found)[2]
                text = text[: min(found)[0]]
        if not ids and decode is not None:
            text = ""
        reason = "length" if cause is None else "stop"
        return Finished(tuple(ids), text, reason, cause, len(prompt), len(ids), len(ids), tuple(prefixes))

    return run


@pytest.fixture
def finished():
    """The same record of a generation."""

    def of(generation) -> Finished:
        return Finished(
            ids=generation.tokens,
            text=generation.text,
            reason=generation.finish_reason,
            stopped_by=generation.stopped_by,
            prompt_tokens=len(generation.prompt_tokens),
            completion_tokens=1 + sum(record.committed for record in generation.records) if generation.tokens else 0,
            logprobs=len(generation.logprobs or ()),
        )

    return of


@pytest.fixture
def room_for():
    """A context manager of a size: meanwhile no file of this process gets larger, as on a disk that is full."""

    @contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
