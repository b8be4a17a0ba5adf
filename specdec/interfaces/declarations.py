"""The words in which parts declare what they do."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic

from typing_extensions import TypeVar

from specdec.errors import SpecError
from specdec.trees.draft_tree import Draw


class Shape(StrEnum):
    """A chain has at most one child per node. Chains are several i.i.d. ones, joined where they agree: a tree, too."""

    CHAIN = "chain"
    TREE = "tree"
    CHAINS = "chains"


class Gives(StrEnum):
    """What a drafter answers a frontier with: logits, or a few scored tokens."""

    DISTRIBUTIONS = "distributions"
    CANDIDATES = "candidates"


class Reads(StrEnum):
    """Which rows of p a verifier reads: those of the path that it takes, in order, or those of the whole tree beforehand."""

    PATH = "path"
    TREE = "tree"


class Beside(StrEnum):
    """What a verifier reads of the target beside p: its logits before any warping, or its last hidden state at each node."""

    UNWARPED_LOGITS = "unwarped_logits"
    FEATURES = "features"


class Guarantee(StrEnum):
    """Whether the output distribution is the target's (after warping)."""

    LOSSLESS = "lossless"
    LOSSY = "lossy"


def _read_words(declaration: object, kinds: Mapping[str, type[StrEnum]]) -> None:
    """Let a plain text stand for the word that it spells; what is none stays, to be reported with the declaration."""
    for name, kind in kinds.items():
        value: Any = getattr(declaration, name)
        if isinstance(value, frozenset | set):
            object.__setattr__(declaration, name, frozenset(_word(kind, one) for one in value))
        else:
            object.__setattr__(declaration, name, _word(kind, value))


def _word(kind: type[StrEnum], value: object) -> object:
    return kind(value) if isinstance(value, str) and value in set(kind) else value


@dataclass(frozen=True, slots=True)
class Features:
    """Which hidden states a drafter wants of every scored node.

    `last`: the hidden state after the final norm. `layers`: inputs of these decoder layers, 0-based, before the layer;
    the number of layers itself means the output of the last layer, before the final norm.
    """

    last: bool = False
    layers: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.last or bool(self.layers)


@dataclass(frozen=True, slots=True)
class DrafterDeclaration:
    """`targets` are specs of further models that the drafter needs, by option name; compose loads and injects them.

    `drafters` are specs of further drafters that it asks, as they stand in its option `parts`; they are injected likewise, and
    what they need is added to what it declares.
    `unread`: its files are out of reach until it is loaded, so that this is what the options alone tell.
    `made_for`: (hidden size, vocabulary) of the target that its weights were made for; of each, for a drafter that asks others.
    `max_depth`: levels below the root that it drafts; it is not asked below them. None: any.
    """

    gives: Gives
    features: Features = Features()
    targets: tuple[tuple[str, object], ...] = ()
    drafts: bool = True
    unread: bool = False
    drafters: tuple[object, ...] = ()
    made_for: tuple[tuple[int, int], ...] = ()
    max_depth: int | None = None

    def __post_init__(self) -> None:
        _read_words(self, {"gives": Gives})


@dataclass(frozen=True, slots=True)
class BuilderDeclaration:
    """`prunes_on_draws`: nodes are ranked or cut after drawn tokens were looked at, so survivors no longer follow q.

    `max_children`: by depth of the parent, from the root on, the most children of a node. It tells a proof which places a tree
    may have beside those that were seen; None: not declared.
    """

    draw: Draw
    shape: Shape
    needs: frozenset[Gives]
    prunes_on_draws: bool = False
    max_nodes: int | None = None
    max_depth: int | None = None
    max_children: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _read_words(self, {"draw": Draw, "shape": Shape, "needs": Gives})


@dataclass(frozen=True, slots=True)
class VerifierDeclaration:
    """`reads_q`: the rule divides by, or subtracts, the distribution that the drafts were drawn from.

    `reads`: with TREE, rows of p are asked for also where no token is emitted.
    `most_drafts`: of a rule that goes through all drafts of a node, how many there may be: the tokens of q to the power of the
    number of children; None: any.
    `accepts_impossible`: a lossy rule may accept a token with p = 0, so that no constraint on the answer holds.
    `reads_beside`: what it asks of the target beside p, by `TargetProbs.unwarped` and `TargetProbs.feature`.
    """

    accepts: frozenset[Draw]
    shapes: frozenset[Shape]
    reads_q: bool
    guarantee: Guarantee = Guarantee.LOSSLESS
    reads: Reads = Reads.PATH
    most_drafts: int | None = None
    accepts_impossible: bool = False
    reads_beside: frozenset[Beside] = frozenset()

    def __post_init__(self) -> None:
        words = {"accepts": Draw, "shapes": Shape, "guarantee": Guarantee, "reads": Reads, "reads_beside": Beside}
        _read_words(self, words)

    def beside(self, features: Features) -> Features:
        """The hidden states that are wanted of the target, with those that the rule reads."""
        return replace(features, last=True) if Beside.FEATURES in self.reads_beside else features


@dataclass(frozen=True, slots=True)
class TargetDeclaration:
    """What can be said of a target before its weights are loaded; None where only loading will tell."""

    vocab_size: int | None = None
    num_layers: int | None = None
    max_positions: int | None = None
    no_trees_because: str | None = None
    no_decoding_because: str | None = None
    hidden_size: int | None = None


ALL_SHAPES = frozenset(Shape)


DeclarationT = TypeVar("DeclarationT")


class Declaring(Generic[DeclarationT]):
    """A part that carries what it declares; `build_part` and compose see to that, a part that wraps another one sets it."""

    _declaration: DeclarationT | None = None

    @property
    def declaration(self) -> DeclarationT:
        """What `declares` said of its options. Raises SpecError for a part that was made by its constructor alone."""
        if self._declaration is None:
            name = type(self).__name__
            raise SpecError(f"{name} carries no declaration; make it with build_part({name}, options), or set `declaration`")
        return self._declaration

    @declaration.setter
    def declaration(self, value: DeclarationT) -> None:
        self._declaration = value


class Kind(StrEnum):
    """The four kinds of part, by their key in a spec."""

    TARGET = "target"
    DRAFTER = "drafter"
    TREE = "tree"
    VERIFIER = "verifier"

    @property
    def plural(self) -> str:
        """As `specdec list` calls them."""
        return {"target": "targets", "drafter": "drafters", "tree": "builders", "verifier": "verifiers"}[self]


def context_in_words(max_positions: int | None, capped_because: str | None) -> str:
    """The context's length, and why it ends there."""
    return f"{max_positions} tokens" + (f" ({capped_because})" if capped_because else "")
