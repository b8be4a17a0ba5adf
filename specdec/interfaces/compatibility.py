"""The rules for which parts fit together. Pure: nothing here imports a part or a model."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from specdec.errors import SpecdecWarning
from specdec.interfaces.declarations import (
    BuilderDeclaration,
    DrafterDeclaration,
    Gives,
    Guarantee,
    Shape,
    TargetDeclaration,
    VerifierDeclaration,
)
from specdec.trees.draft_tree import SINGLE_DRAWS, Draw

D = TypeVar("D")

_SHAPES = {Shape.CHAIN: "a chain", Shape.TREE: "a tree", Shape.CHAINS: "several i.i.d. chains"}


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


def effective_draws(builder: BuilderDeclaration) -> frozenset[Draw]:
    """The kinds of draw under which the builder's trees may be verified; a single draw from q is of several kinds."""
    if builder.shape is Shape.CHAIN and builder.draw in SINGLE_DRAWS:
        return SINGLE_DRAWS
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
    if made.shape not in rule.shapes and not (made.shape is Shape.CHAINS and Shape.TREE in rule.shapes):
        wanted = " or ".join(_SHAPES[shape] for shape in sorted(rule.shapes))
        yield Mismatch(
            "shape",
            ("tree", "verifier"),
            f"tree '{builder.name}' grows {_SHAPES[made.shape]}; verifier '{verifier.name}' verifies {wanted}",
        )
    if rule.reads_q and made.prunes_on_draws:
        yield Mismatch(
            "prunes-on-draws",
            ("tree", "verifier"),
            f"tree '{builder.name}' cuts nodes after looking at what was drawn, so that they no longer follow q; "
            f"verifier '{verifier.name}' reads q",
        )


def too_many_drafts(
    builder: NamedDeclaration[BuilderDeclaration], verifier: NamedDeclaration[VerifierDeclaration], top_k: int | None
) -> Mismatch | None:
    """Whether a rule would have to go through more drafts of a node than it can. top_k: of the draft sampling."""
    most, children = verifier.declares.most_drafts, max(builder.declares.max_children or (1,))
    if most is None or children == 1 or (top_k is not None and top_k**children <= most):
        return None
    drawn = f"from {top_k} tokens" if top_k is not None else "from the whole vocabulary"
    fitting = max(1, int(most ** (1 / children) + 1e-9))
    return Mismatch(
        "drafts",
        ("verifier",),
        f"verifier '{verifier.name}' goes through all drafts of a node, at most {most}; {children} draws {drawn} are more: "
        f"'sampling: {{draft: {{temperature: 1, top_k: {fitting}}}}}' would work",
    )


def _coupled(builder: str) -> str:
    why = "the distribution holds only where each emitted token is one draw from p, and a draft is accepted if it equals that"
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
    if offers.no_trees_because is not None and builder.declares.shape is not Shape.CHAIN:
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


PADDING = 1024
"""Vocabularies of one tokenizer differ between checkpoints by less than this."""


def size_fault(made_for: tuple[int, int], hidden_size: int | None, vocab_size: int | None, target: str) -> str | None:
    """Why weights for a model of this width and vocabulary do not serve `target`; None: they may. None of a size: not known.

    A target may be padded beyond what the weights know, but not lack tokens that they name.
    """
    width, vocabulary = made_for
    if hidden_size is not None and width != hidden_size:
        return f"reads hidden states {width} wide; those of {target} are {hidden_size} wide"
    if vocab_size is not None and not 0 <= vocab_size - vocabulary < PADDING:
        return f"is made for a vocabulary of {vocabulary} tokens; {target} has {vocab_size}"
    return None


def warn_of_few_positions(name: str, own: int | None, target: int | None, effect: str) -> None:
    """Warn where a drafter's context, in tokens, is shorter than the target's. effect: what it does beyond; None: not known."""
    if own is not None and target is not None and own < target:
        warnings.warn(
            f"{name} has {own} positions and the target {target}: beyond its own it {effect}", SpecdecWarning, stacklevel=3
        )
