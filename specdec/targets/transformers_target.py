"""What all targets that run on transformers share: an assembled model and its codec behind the interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import OptionsT, Prefilled, Target, TargetState
from specdec.interfaces.results import Scored, TargetFacts
from specdec.interfaces.text_codec import TextCodec
from specdec.targets.probing import ProbedRuntime
from specdec.trees.draft_tree import DraftTree


class Runtime(ProbedRuntime, Protocol):
    """What runs a model over the sequences of a batch; all its functions are those of `Target`."""

    def keep(self, state: Any, rows: Sequence[int]) -> None:
        """Drop all rows but these."""

    def fork(self, state: Any, copies: Sequence[int]) -> TargetState:
        """A state in which row r occurs copies[r] times."""

    def join(self, state: Any, other: Any) -> None:
        """Append the rows of another state."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A runtime and what is known of it."""

    runtime: Runtime
    facts: TargetFacts


class TransformersTarget(Target[OptionsT]):
    """A transformers model that scores draft trees; where it comes from is what its kinds declare and build."""

    def __init__(self, assembled: Assembled, codec: TextCodec | None) -> None:
        self._runtime = assembled.runtime
        self._facts = assembled.facts
        self._codec = codec

    @property
    def facts(self) -> TargetFacts:
        return self._facts

    @property
    def codec(self) -> TextCodec | None:
        return self._codec

    def prefill(self, prompts: Sequence[Sequence[int]], features: Features) -> Prefilled:
        return Prefilled(*self._runtime.prefill(prompts, features))

    def score(self, state: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        return self._runtime.score(state, trees)

    def commit(self, state: TargetState, paths: Sequence[Sequence[int] | None]) -> None:
        self._runtime.commit(state, paths)

    def keep(self, state: TargetState, rows: Sequence[int]) -> None:
        self._runtime.keep(state, rows)

    def fork(self, state: TargetState, copies: Sequence[int]) -> TargetState:
        return self._runtime.fork(state, copies)

    def join(self, state: TargetState, other: TargetState) -> None:
        self._runtime.join(state, other)

    def embed(self, ids: Tensor) -> Tensor:
        return self._runtime.call.embed(ids)

    def head(self, hidden: Tensor) -> Tensor:
        return self._runtime.call.head(hidden)
