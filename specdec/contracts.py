"""The words in which parts declare what they do, and the rules for which parts fit together.

Pure: nothing here imports a part, a model or torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from specdec.model_sizes import size_fault
from specdec.trees.draft_tree import Draw

D = TypeVar("D")


class Shape(StrEnum):
    """A chain has at most one child per node."""

    CHAIN = "chain"
    TREE = "tree"


class Gives(StrEnum):
    """What a drafter answers a frontier with: logits, or a few scored tokens."""

    DISTRIBUTIONS = "distributions"
    CANDIDATES = "candidates"


class Guarantee(StrEnum):
    """Whether the output law is the target's (after warping)."""

    LOSSLESS = "lossless"
    LOSSY = "lossy"


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
    """

    gives: Gives
    features: Features = Features()
    targets: tuple[tuple[str, object], ...] = ()
    drafts: bool = True
    unread: bool = False
    drafters: tuple[object, ...] = ()
    made_for: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class BuilderDeclaration:
    """`prunes_on_draws`: nodes are ranked or cut after drawn tokens were looked at, so survivors no longer follow q."""

    draw: Draw
    shape: Shape
    needs: frozenset[Gives]
    prunes_on_draws: bool = False
    max_nodes: int | None = None
    max_depth: int | None = None


@dataclass(frozen=True, slots=True)
class VerifierDeclaration:
    """`reads_q`: the rule divides by, or subtracts, the distribution that the drafts were drawn from."""

    accepts: frozenset[Draw]
    shapes: frozenset[Shape]
    reads_q: bool
    guarantee: Guarantee = Guarantee.LOSSLESS


@dataclass(frozen=True, slots=True)
class TargetDeclaration:
    """What can be said of a target before its weights are loaded; None where only loading will tell."""

    vocab_size: int | None = None
    num_layers: int | None = None
    max_positions: int | None = None
    no_trees_because: str | None = None
    no_decoding_because: str | None = None
    hidden_size: int | None = None


@dataclass(frozen=True, slots=True)
class NamedDeclaration(Generic[D]):
    """A declaration and the name by which the spec calls its part."""

    name: str
    declares: D


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One broken rule. `fields` are the spec's keys (`drafter`, `tree`, ...) whose lines are to be shown."""

    rule: str
    fields: tuple[str, ...]
    message: str


ALL_SHAPES = frozenset(Shape)


def effective_draws(builder: BuilderDeclaration) -> frozenset[Draw]:
    """The kinds of draw under which the builder's trees may be verified; one child is both i.i.d. and without replacement."""
    if builder.shape is Shape.CHAIN and builder.draw in (Draw.IID, Draw.WITHOUT_REPLACEMENT):
        return frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})
    return frozenset({builder.draw})


def mismatches(
    *,
    drafter: NamedDeclaration[DrafterDeclaration],
    builder: NamedDeclaration[BuilderDeclaration],
    verifier: NamedDeclaration[VerifierDeclaration],
    target: NamedDeclaration[TargetDeclaration] | None = None,
    allow_lossy: bool = False,
) -> list[Mismatch]:
    """Every rule that the four parts break together; an empty list means that they fit."""
    return [
        *_drafter_and_builder(drafter, builder),
        *_builder_and_verifier(builder, verifier),
        *_drafter_and_verifier(drafter, verifier),
        *([] if target is None else _target_and_rest(target, drafter, builder)),
        *_lossy(verifier, allow_lossy),
    ]


def _drafter_and_builder(
    drafter: NamedDeclaration[DrafterDeclaration], builder: NamedDeclaration[BuilderDeclaration]
) -> Iterable[Mismatch]:
    if drafter.declares.gives not in builder.declares.needs:
        needed = " or ".join(sorted(builder.declares.needs))
        yield Mismatch(
            "needs",
            ("tree", "drafter"),
            f"tree '{builder.name}' needs {needed}; drafter '{drafter.name}' gives {drafter.declares.gives}",
        )


def _builder_and_verifier(
    builder: NamedDeclaration[BuilderDeclaration], verifier: NamedDeclaration[VerifierDeclaration]
) -> Iterable[Mismatch]:
    made, rule = builder.declares, verifier.declares
    if not effective_draws(made) & rule.accepts:
        wanted = " or ".join(sorted(rule.accepts))
        makes = _coupled(builder.name) if made.draw is Draw.COUPLED else f"tree '{builder.name}' makes {made.draw} draws"
        message = f"{makes}; verifier '{verifier.name}' needs {wanted} draws"
        yield Mismatch("draw", ("tree", "verifier"), message)
    elif made.draw is Draw.COUPLED and rule.reads_q:
        yield Mismatch("coupled", ("tree", "verifier"), f"{_coupled(builder.name)}; verifier '{verifier.name}' reads q")
    if made.shape not in rule.shapes:
        wanted = " or ".join(sorted(rule.shapes))
        yield Mismatch(
            "shape",
            ("tree", "verifier"),
            f"tree '{builder.name}' grows a {made.shape}; verifier '{verifier.name}' verifies a {wanted}",
        )
    if rule.reads_q and made.prunes_on_draws:
        yield Mismatch(
            "prunes-on-draws",
            ("tree", "verifier"),
            f"tree '{builder.name}' cuts nodes after looking at what was drawn, so that they no longer follow q; "
            f"verifier '{verifier.name}' reads q",
        )


def _coupled(builder: str) -> str:
    why = "the law holds only where each emitted token is one draw from p, and a draft is accepted if it equals that"
    return f"tree '{builder}' makes coupled draws, with the noise by which the target draws: {why}"


def _drafter_and_verifier(
    drafter: NamedDeclaration[DrafterDeclaration], verifier: NamedDeclaration[VerifierDeclaration]
) -> Iterable[Mismatch]:
    if verifier.declares.reads_q and drafter.declares.gives is not Gives.DISTRIBUTIONS:
        yield Mismatch(
            "reads-q",
            ("drafter", "verifier"),
            f"drafter '{drafter.name}' gives candidates without q; verifier '{verifier.name}' reads q",
        )


def _target_and_rest(
    target: NamedDeclaration[TargetDeclaration],
    drafter: NamedDeclaration[DrafterDeclaration],
    builder: NamedDeclaration[BuilderDeclaration],
) -> Iterable[Mismatch]:
    offers = target.declares
    if offers.no_decoding_because is not None:
        yield Mismatch("target", ("target",), f"target '{target.name}' cannot be decoded: {offers.no_decoding_because}")
    if offers.no_trees_because is not None and builder.declares.shape is Shape.TREE:
        yield Mismatch(
            "trees",
            ("target", "tree"),
            f"target '{target.name}' cannot score trees ({offers.no_trees_because}); tree 'chain' would work",
        )
    missing = [
        layer for layer in drafter.declares.features.layers if offers.num_layers is not None and layer > offers.num_layers
    ]
    if missing:
        yield Mismatch(
            "features",
            ("drafter", "target"),
            f"drafter '{drafter.name}' wants hidden states {missing}; target '{target.name}' has {offers.num_layers} layers",
        )
    for sizes in drafter.declares.made_for:
        if (fault := size_fault(sizes, offers.hidden_size, offers.vocab_size, f"target '{target.name}'")) is not None:
            yield Mismatch("sizes", ("drafter", "target"), f"drafter '{drafter.name}' {fault}")


def _lossy(verifier: NamedDeclaration[VerifierDeclaration], allow_lossy: bool) -> Iterable[Mismatch]:
    if verifier.declares.guarantee is Guarantee.LOSSY and not allow_lossy:
        yield Mismatch(
            "lossy",
            ("verifier",),
            f"verifier '{verifier.name}' is lossy: its output does not follow the target; 'allow_lossy: true' permits it",
        )
