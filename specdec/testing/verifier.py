"""`check_verifier`: is the rule lossless on every kind of draft that it declares, and does it refuse the others?"""

from collections.abc import Mapping
from typing import Any

import torch

from specdec.errors import PluginError, SpecdecError
from specdec.interfaces.declarations import Beside, Guarantee, Kind, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams
from specdec.sampling.rng import seeded
from specdec.testing.mixed_kinds import MixedKinds, mixtures
from specdec.testing.opening import Opened, opened, part_name
from specdec.testing.places import PLACES, Pair, fits, prove_places
from specdec.testing.proving import (
    DEEP,
    GREEDY,
    HOT,
    PARTNERS,
    SMALL,
    decoder_of,
    misfit,
    models_of,
    prove_loop,
    prove_steps,
    table_drafter,
    target_of,
)
from specdec.testing.report import Checked, CheckFailed
from specdec.trees.draft_tree import SINGLE_DRAWS, Draw, TreeSketch

MODELS = 8
"""One model of each temper."""


SOONEST = (Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_THEN_ONE, Draw.PAIR, Draw.COUPLED)
"""Kinds of draw, those first whose drafts are enumerated soonest: prefixes of every length are tried with the first alone."""


def check_verifier(cls: type[Verifier], options: Mapping[str, Any] | PartOptions | None = None) -> Checked:
    """Enumerate the output distribution on drafts of every kind and shape that it declares.

    A rule that declares itself lossy is held to everything but the distribution; `largest_tv` says how lossy it is on these
    models. Raises CheckFailed.
    """
    report = Checked(part_name(Kind.VERIFIER, cls))
    part = opened(Kind.VERIFIER, cls, options, report)
    if Beside.FEATURES in part.declares.reads_beside:
        raise CheckFailed(
            f"{report.part} reads hidden states, and cannot run on a table; `specdec verify STRATEGY --level runtime` and "
            "`--level sampled` check it on its own model"
        )
    report.lossy = part.declares.guarantee is Guarantee.LOSSY
    said = "its distance is measured" if report.lossy else "the distribution is the target's"
    for draw in sorted(part.declares.accepts):
        if report.lossy and draw is Draw.COUPLED:
            continue
        with report.rule(f"{said} on {draw} draws"):
            _prove(part, draw, report)
    with report.rule(f"{said} where parents differ in how their children were drawn"):
        _prove_mixtures(part, report)
    with report.rule("draws that it does not declare are refused"):
        _refuses(part)
    with report.rule("tree and q are left as they are"):
        _leaves_alone(part)
    if not report.lossy:
        for number, draw in enumerate(one for one in SOONEST if one in part.declares.accepts):
            with report.rule(f"{said} at every place of a tree of {draw} draws"):
                _prove_places(part, draw, report, everything=number == 0)
    with report.rule(f"{said} in two steps of the decode loop"):
        _prove_loops(part, report)
    return report


def _prove(part: Opened, draw: Draw, report: Checked) -> None:
    lossless = part.declares.guarantee is Guarantee.LOSSLESS
    met = 0
    for partner in PARTNERS:
        if partner.cls.declares(partner.options).draw is not draw:
            continue
        for number, model in enumerate(models_of(partner.vocab_size, MODELS)):
            for sampling in (HOT, GREEDY) if number == 0 else (HOT,):
                decoder = decoder_of(
                    target_of(model), table_drafter(model), (partner.cls, partner.options), (part.cls, part.options), sampling
                )
                if misfit(decoder):
                    continue
                words = f"{partner.words} at temperature {sampling.temperature:g}"
                met += prove_steps(decoder, model, words, report, lossless=lossless) is not None
    if not met:
        shapes = " and ".join(sorted(part.declares.shapes)) or "no shape"
        raise CheckFailed(f"it declares {draw} draws in {shapes}, and no draft of ours is of that kind")


def _prove_mixtures(part: Opened, report: Checked) -> None:
    lossless = part.declares.guarantee is Guarantee.LOSSLESS
    model = models_of(DEEP, 2)[1]
    for options in mixtures(part.declares.accepts) if Shape.TREE in part.declares.shapes else ():
        decoder = decoder_of(target_of(model), table_drafter(model), (MixedKinds, options), (part.cls, part.options), HOT)
        if not misfit(decoder):
            words = f"{options.above} draws at the root and {options.below} ones below"
            prove_steps(decoder, model, words, report, lossless=lossless)


def _prove_places(part: Opened, draw: Draw, report: Checked, *, everything: bool) -> None:
    """A tree for every place, and a chain for prefixes of every length and later steps (where everything is wanted)."""
    chain, tree = (Pair((one.cls, one.options), (part.cls, part.options), one.words) for one in PLACES[draw])
    if fits(tree):
        report.covered[f"a tree of {draw} draws"] = prove_places(tree, report, everything=everything and not fits(chain))
    if fits(chain) and (everything or not fits(tree)):
        report.covered[f"a chain of {draw} draws"] = prove_places(chain, report, everything=everything)


def _prove_loops(part: Opened, report: Checked) -> None:
    lossless = part.declares.guarantee is Guarantee.LOSSLESS
    for partner in PARTNERS:
        model = models_of(SMALL, 2)[1]
        builder = (partner.cls, partner.options)
        decoder = decoder_of(target_of(model), table_drafter(model), builder, (part.cls, part.options), HOT)
        if report.lossy and decoder.builder.declaration.draw is Draw.COUPLED:
            continue
        if not misfit(decoder) and prove_loop(decoder, model, partner.words, report, lossless=lossless) is not None:
            return
    raise CheckFailed("no draft was small enough to be enumerated over two steps")


def _refuses(part: Opened) -> None:
    rule: Verifier = part.cls.build(part.options, BuildTools())
    for draw in Draw:
        if draw in part.declares.accepts:
            continue
        for tokens in ((1, 2), (1,)) if part.declares.shapes - {Shape.CHAIN} else ((1,),):
            single = len(tokens) == 1 and draw in SINGLE_DRAWS
            if single and part.declares.accepts & SINGLE_DRAWS:
                continue
            _refuses_one(rule, draw, tokens)


def _refuses_one(rule: Verifier, draw: Draw, tokens: tuple[int, ...]) -> None:
    sketch = TreeSketch(0, 3)
    nodes = tuple(sketch.add(0, token) for token in tokens)
    q = torch.full((1, 4), 0.25, dtype=torch.float64)
    tree = sketch.freeze(draw, draw_order={0: nodes}, q=q, q_row=[0] + [-1] * len(nodes))
    p = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=1, stop_ids=frozenset()).target_probs(
        torch.zeros(len(tree), 4), [0], tree
    )
    try:
        rule.verify(tree, p, seeded(0).target)
    except SpecdecError:
        return
    raise CheckFailed(
        f"a node with {len(tokens)} children stamped as {draw} draws was verified; expected PluginError, as "
        "specdec.verifiers.base.siblings raises it: a builder that stamps otherwise than it declares must fail loudly"
    )


def _leaves_alone(part: Opened) -> None:
    rule: Verifier = part.cls.build(part.options, BuildTools())
    draw = sorted(part.declares.accepts)[0]
    for seed in range(8):
        sketch = TreeSketch(0, 3)
        node = sketch.add(0, 1)
        q = torch.tensor([[0.1, 0.6, 0.2, 0.1]], dtype=torch.float64)
        tree = sketch.freeze(draw, draw_order={0: (node,)}, q=q.clone(), q_row=[0, -1])
        logits = torch.tensor([[0.0, -1.0, 1.0, 0.5]] * 2, dtype=torch.float64)
        p = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=1, stop_ids=frozenset()).target_probs(
            logits.clone(), [0], tree
        )
        before = [p.row(n).probs.clone() for n in range(2)]
        try:
            rule.verify(tree, p, seeded(seed).target)
        except PluginError as error:
            raise CheckFailed(f"a chain of one {draw} draw is refused: {error}") from error
        same = tree.q is not None and torch.equal(tree.q, q) and dict(tree.draw_order) == {0: (node,)}
        if not same or not all(torch.equal(p.row(n).probs, before[n]) for n in range(2)):
            raise CheckFailed("verify changed the tree, its q or p in place; work on copies (p.row(n) is shared)")
