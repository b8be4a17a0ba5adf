"""The abstract parts. A class here is abstract throughout; implementations are final and override nothing concrete.

Everything runs on a batch: a `Target` state and a `DraftSession` cover the same rows in the same order, lists are aligned
with the rows, `keep` drops rows that have finished and `join` appends rows that begin. Builders and verifiers see one
sequence at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

from pydantic import BaseModel, ConfigDict
from torch import Tensor
from typing_extensions import TypeVar

from specdec.interfaces.declarations import (
    BuilderDeclaration,
    Declaring,
    DrafterDeclaration,
    Features,
    TargetDeclaration,
    VerifierDeclaration,
)
from specdec.interfaces.proposals import Answer, Budget, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, Scored, TargetFacts, Verdict
from specdec.interfaces.text_codec import TextCodec
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import DraftRng, TargetRng
from specdec.trees.draft_tree import DraftTree


class PartOptions(BaseModel):
    """The keys that a part takes in a spec, beside `use`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


OptionsT = TypeVar("OptionsT", bound=PartOptions, default=Any)
PartT = TypeVar("PartT", bound="Drafter | TreeBuilder | Verifier")


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """A target state after the prompts. scored[r].logits: [1, vocab] at the prompt's last token; hidden: all prompt tokens."""

    state: "TargetState"
    scored: tuple[Scored, ...]


class TargetState(ABC):
    """Opaque to everybody but its target. Invariant: cached tokens == committed tokens - 1 (the root is not cached)."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, ...]:
        """Cached tokens by row."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise NumericsError unless the bookkeeping is consistent."""


class Target(ABC, Generic[OptionsT]):
    """The model whose distribution is to be reproduced; a draft language model is one too."""

    name: ClassVar[str]
    Options: ClassVar[type[PartOptions]]

    @classmethod
    @abstractmethod
    def declares(cls, options: OptionsT) -> TargetDeclaration:
        """What is known from the options alone (config.json may be read, weights never)."""

    @classmethod
    @abstractmethod
    def build(cls, options: OptionsT, tools: "BuildTools") -> "Target":
        """Load it."""

    @property
    @abstractmethod
    def facts(self) -> TargetFacts:
        """Sizes and limits, known after loading."""

    @property
    @abstractmethod
    def codec(self) -> TextCodec | None:
        """Its tokenizer, where it has one."""

    @abstractmethod
    def prefill(self, prompts: Sequence[Sequence[int]], features: Features) -> Prefilled:
        """A fresh state with one row per prompt (at least one token each). Prompts of the batch may differ in length."""

    @abstractmethod
    def score(self, state: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        """Logits and hidden states of every node not yet scored since the last commit, in one forward.

        Later calls may pass trees that extend the earlier ones (same nodes first): a draft model grows them level by level.
        """

    @abstractmethod
    def commit(self, state: TargetState, paths: Sequence[Sequence[int] | None]) -> None:
        """Keep the root and the accepted `path` of each row in the cache and forget all other nodes.

        None keeps nothing, not even the root: the row's draft is rolled back.
        """

    @abstractmethod
    def keep(self, state: TargetState, rows: Sequence[int]) -> None:
        """Drop all rows but these, ascending. What they scored since the last commit can still be committed."""

    @abstractmethod
    def fork(self, state: TargetState, copies: Sequence[int]) -> TargetState:
        """A state in which row r occurs copies[r] times, in order: samples that share one prefill."""

    @abstractmethod
    def join(self, state: TargetState, other: TargetState) -> None:
        """Append the rows of `other`, a state of this target with the same features, between steps: sequences that begin later.

        `other` is not used any more.
        """

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """[n, hidden] input embeddings, scaled as the model scales them."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """[n, vocab] logits of post-norm hidden states, soft caps and scales included."""


class DraftSession(ABC):
    """The state of drafting for the rows of one batch."""

    @abstractmethod
    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """An answer per row, one entry per frontier node; None for rows that ask nothing."""

    @abstractmethod
    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Learn what each row emitted. The last committed token is the next root. Forget the tree."""

    @abstractmethod
    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, ascending."""

    @abstractmethod
    def join(self, other: Self) -> None:
        """Append the rows of another session of the same drafter, between steps. `other` is not used any more."""


class Drafter(Declaring[DrafterDeclaration], ABC, Generic[OptionsT]):
    """Proposes tokens; knows nothing of p, of the tree's shape or of acceptance."""

    name: ClassVar[str]
    Options: ClassVar[type[PartOptions]]

    @classmethod
    @abstractmethod
    def declares(cls, options: OptionsT) -> DrafterDeclaration:
        """What it gives and needs; may read a config.json, never tensors."""

    @classmethod
    @abstractmethod
    def build(cls, options: OptionsT, tools: "BuildTools") -> "Drafter":
        """Load it. Raises TargetMismatch when it does not fit tools.target."""

    @abstractmethod
    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        """A session for these sequences; sessions share nothing that changes."""


class TreeBuilder(Declaring[BuilderDeclaration], ABC, Generic[OptionsT]):
    """Decides the draft's shape and draws its tokens."""

    name: ClassVar[str]
    Options: ClassVar[type[PartOptions]]

    @classmethod
    @abstractmethod
    def declares(cls, options: OptionsT) -> BuilderDeclaration:
        """How it draws and what it needs."""

    @classmethod
    @abstractmethod
    def build(cls, options: OptionsT, tools: "BuildTools") -> "TreeBuilder":
        """Resolve its options (tree files)."""

    @abstractmethod
    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """Yield frontiers, receive one answer each, return the tree, within `budget`.

        A drawing builder receives `DraftProbs`, a deterministic one `Distributions` or `Candidates`. A coupled one receives
        `DraftProbs`, and at temperature 0, where the target draws without noise, what a deterministic one does.
        """


class Verifier(Declaring[VerifierDeclaration], ABC, Generic[OptionsT]):
    """Accepts a path and draws the next token: a pure function of (tree, p, rng)."""

    name: ClassVar[str]
    Options: ClassVar[type[PartOptions]]

    @classmethod
    @abstractmethod
    def declares(cls, options: OptionsT) -> VerifierDeclaration:
        """Which draws and shapes it accepts, whether it reads q, and its guarantee."""

    @classmethod
    @abstractmethod
    def build(cls, options: OptionsT, tools: "BuildTools") -> "Verifier":
        """Resolve its options."""

    @abstractmethod
    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        """One step. Reads p only at nodes that it reaches, in path order; with Reads.TREE elsewhere too, parents first."""


@dataclass(frozen=True, slots=True)
class BuildTools:
    """What compose hands to `build`. target: the main target (absent while that itself is built).

    targets: further models that the drafter declared, loaded. find_tree: name or path -> file of a tree shape.
    drafters: further drafters that it declared, built.
    """

    target: Target | None = None
    targets: Mapping[str, Target] = field(default_factory=dict)
    find_tree: Callable[[str], Path] = Path
    sampling_seed: int = 0
    drafters: tuple[Drafter, ...] = ()


def build_part(cls: type[PartT], options: PartOptions | None = None, tools: BuildTools | None = None) -> PartT:
    """A drafter, tree builder or verifier that carries its declaration, as `Decoder` wants it.

    Args:
        cls: The part's class.
        options: An instance of `cls.Options`; None: its defaults.
        tools: What `build` needs, such as the target; None: nothing.
    """
    given = cls.Options() if options is None else options
    made: Any = cls.build(given, BuildTools() if tools is None else tools)
    made.declaration = cls.declares(given)
    part: PartT = made
    return part
