"""`check_builder`: are its trees sound, drawn as they say, and lossless under every verifier that fits?"""

from collections.abc import Iterator, Mapping
from typing import Any

from specdec.decoding.decoder import Decoder
from specdec.drafters.ngram import NgramDrafter, NgramOptions
from specdec.interfaces.compatibility import effective_draws
from specdec.interfaces.declarations import Gives, Kind, Shape
from specdec.interfaces.parts import Drafter, PartOptions, TreeBuilder, Verifier
from specdec.losslessness.exact.checked_rng import NotAFunctionOfItsDraws
from specdec.losslessness.exact.enumeration import Draft, draft_distribution
from specdec.losslessness.exact.guards import with_smaller_drafts
from specdec.losslessness.exact.toy_models import StandIn, shown
from specdec.testing.draws import check_draws
from specdec.testing.opening import Opened, opened, part_name
from specdec.testing.places import Pair, prove_places
from specdec.testing.proving import (
    DEEP,
    GREEDY,
    HOT,
    RULES,
    SMALL,
    WIDE,
    decoder_of,
    enumerable,
    misfit,
    models_of,
    prove_loop,
    prove_steps,
    table_drafter,
    target_of,
)
from specdec.testing.report import Checked, CheckFailed
from specdec.trees.draft_tree import Draw

MODELS = 8
SIZES = ((WIDE, MODELS), (DEEP, 4), (SMALL, 4))
"""Vocabularies, and how many models of each."""


def check_builder(cls: type[TreeBuilder], options: Mapping[str, Any] | PartOptions | None = None) -> Checked:
    """Enumerate its drafts and, under every shipped verifier that fits, the output distribution. Raises CheckFailed."""
    report = Checked(part_name(Kind.TREE, cls))
    part = opened(Kind.TREE, cls, options, report)
    with report.rule("it can be built"):
        fitting = [rule for rule in RULES if not misfit(_decoder(part, rule, models_of(SMALL, 1)[0]))]
    if not fitting:
        raise CheckFailed(f"{report.part}: no verifier fits its declaration {part.declares}")
    for model in _models():
        decoder = _decoder(part, fitting[0], model)
        with report.rule("its trees are as declared, within any budget"):
            drafts = _drafts(decoder, model)
            for draft in drafts:
                _check_tree(part, draft)
            _check_budgets(decoder, model)
        if not part.declares.prunes_on_draws:
            with report.rule("its draws follow the q that it states"):
                check_draws(drafts)
    for rule in fitting:
        with report.rule(f"the distribution is the target's under '{rule.name}'"):
            _prove(part, rule, report)
    strictest = fitting[-1]
    with report.rule(f"it is the target's at every place of its trees under '{strictest.name}'"):
        pair = Pair((part.cls, part.options), (strictest, strictest.Options()), f"verifier '{strictest.name}'")
        report.covered["its trees"] = prove_places(pair, report)
    with report.rule("it is the target's in two steps of the decode loop"):
        _prove_loops(part, fitting, report)
    return report


def _models() -> Iterator[StandIn]:
    for vocab_size, count in SIZES:
        yield from models_of(vocab_size, count)


def _drafter(part: Opened, model: StandIn) -> tuple[type[Drafter], PartOptions]:
    if Gives.DISTRIBUTIONS in part.declares.needs:
        return table_drafter(model)
    return NgramDrafter, NgramOptions(min_confidence=0.0)


def _decoder(part: Opened, rule: type[Verifier], model: StandIn, sampling: Any = HOT) -> Decoder:
    verifier = (rule, rule.Options())
    return decoder_of(target_of(model), _drafter(part, model), (part.cls, part.options), verifier, sampling)


def _drafts(decoder: Decoder, model: StandIn) -> Mapping[Draft, float]:
    smaller = enumerable(decoder, model.prefix)
    if smaller is None:
        raise CheckFailed(f"its drafts have too many outcomes on {model.vocab_size} tokens, even one node; check it with less")
    try:
        drafts = draft_distribution(smaller, model.prefix, depth=None)
    except NotAFunctionOfItsDraws as error:
        raise CheckFailed(f"{error}: all randomness must come from the `rng` that grow receives") from error
    if decoder.builder.declaration.draw is Draw.DETERMINISTIC and len(drafts) > 1:
        raise CheckFailed(
            f"it declares deterministic draws, and grows {len(drafts)} different trees after {shown(model.prefix)}"
        )
    return drafts


def _check_tree(part: Opened, draft: Draft) -> None:
    tree, declares = draft.tree, part.declares
    stamped = {tree.draw_kind[parent] for parent, drawn in tree.draw_order.items() if drawn}
    if others := stamped - effective_draws(declares):
        raise CheckFailed(f"it declares {declares.draw} draws and stamps some as {' and '.join(sorted(others))}")
    if declares.shape is Shape.CHAIN and not tree.is_chain:
        parent = next(node for node, children in enumerate(tree.children) if len(children) > 1)
        raise CheckFailed(f"it declares a chain, and node {parent} has {len(tree.children[parent])} children")
    most_children = declares.max_children
    for parent, drawn in tree.draw_order.items() if most_children is not None else ():
        depth = tree.depths[parent]
        most = most_children[depth] if depth < len(most_children) else 0
        if len(drawn) > most:
            raise CheckFailed(f"it declares at most {most} children of a node at depth {depth}, and drew {len(drawn)}")
    for name, found, most in (
        ("nodes", tree.num_drafted, declares.max_nodes),
        ("levels", tree.max_depth, declares.max_depth),
    ):
        if most is not None and found > most:
            raise CheckFailed(f"it declares at most {most} {name}, and grew {found}")


def _check_budgets(decoder: Decoder, model: StandIn) -> None:
    """The grower refuses a tree beyond its budget, naming both."""
    for depth, nodes in ((1, None), (None, 1), (1, 1)):
        smaller = with_smaller_drafts(decoder, depth=depth, nodes=nodes)
        for draft in draft_distribution(smaller, model.prefix, depth=None) if enumerable(smaller, model.prefix) else ():
            tree = draft.tree
            if (depth and tree.max_depth > depth) or (nodes and tree.num_drafted > nodes):
                raise CheckFailed(
                    f"with a budget of {depth or 'any'} levels and {nodes or 'any'} nodes it grew {tree.max_depth} levels "
                    f"and {tree.num_drafted} nodes; what is cut must be decided before anything is drawn"
                )


def _prove(part: Opened, rule: type[Verifier], report: Checked) -> None:
    for number, model in enumerate(_models()):
        for sampling in (HOT, GREEDY) if number in (0, MODELS) else (HOT,):
            words = f"verifier '{rule.name}' at temperature {sampling.temperature:g}"
            prove_steps(_decoder(part, rule, model, sampling), model, words, report)


def _prove_loops(part: Opened, fitting: list[type[Verifier]], report: Checked) -> None:
    model = models_of(SMALL, 2)[1]
    for rule in fitting:
        prove_loop(_decoder(part, rule, model), model, f"verifier '{rule.name}'", report)
