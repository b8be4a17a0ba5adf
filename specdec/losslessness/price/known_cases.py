"""The price of a rule on the known cases: pairs of p and q for which published and checked figures exist."""

from collections.abc import Mapping
from contextlib import suppress

from specdec.decoding.decoder import Decoder
from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.errors import SpecdecError
from specdec.interfaces.declarations import VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder, Verifier, build_part
from specdec.losslessness.exact.enumeration import prove_step
from specdec.sampling.params import SamplingParams
from specdec.targets.tabular import Tabular, TabularTargetOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.trees.draft_tree import Draw

CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "A": (("1/2", "3/10", "1/5"), ("3/10", "1/5", "1/2")),
    "B": (("3/5", "1/5", "1/10", "1/10"), ("7/10", "1/5", "1/20", "1/20")),
    "C": (("1/10", "1/5", "3/10", "2/5"), ("2/5", "3/10", "1/5", "1/10")),
    "D": (("1/2", "1/4", "1/4"), ("1/2", "1/4", "1/4")),
    "F": (("0", "1", "0"), ("1/2", "1/3", "1/6")),
    "G": (("1/2", "1/3", "1/6"), ("0", "1", "0")),
    "H": (("0", "1/2", "1/4", "1/4", "0"), ("1/4", "0", "1/2", "0", "1/4")),
    "I": (("1/3", "2/3"), ("2/3", "1/3")),
}
"""By name: p and q, as fractions."""


def known_prices(verifier: Verifier) -> dict[str, float]:
    """By case and draft: the exact total variation of one token; of one draft, and of two where the rule takes certain ones.

    Cases that the rule cannot take (it needs more tokens, or other drafts) are left out; all are for one that reads more of the
    target than p, since these cases are p and q alone.
    """
    prices = {}
    for label, builder, options in () if verifier.declaration.reads_beside else _drafts(verifier.declaration):
        for name, (p, q) in CASES.items():
            with suppress(SpecdecError):
                prices[f"{name}, {label}"] = _price(verifier, build_part(builder, options), p, q)
    return prices


def worst_words(prices: Mapping[str, float]) -> str:
    """What a rule with these prices costs at most, in one line."""
    if not prices:
        return "it has no exact price: the known cases are p and q alone, and it takes none of their drafts or reads more"
    worst = max(prices, key=lambda name: prices[name])
    return f"a token's total variation is up to {prices[worst]:.3g} on {len(prices)} known cases: {worst}"


def _drafts(declares: VerifierDeclaration) -> list[tuple[str, type[TreeBuilder], PartOptions]]:
    if Draw.DETERMINISTIC in declares.accepts:
        return [
            ("likeliest draft", Fixed, FixedOptions(widths=(1,))),
            ("likeliest two", Fixed, FixedOptions(widths=(2,))),
        ]
    return [("one draw", Chain, ChainOptions(length=1, draw="sampled"))]


def _price(verifier: Verifier, builder: TreeBuilder, p: tuple[str, ...], q: tuple[str, ...]) -> float:
    target_options, drafter_options = ({"vocab": len(row), "rows": {"*": row}, "start": 2} for row in (p, q))
    target = Tabular(TabularTargetOptions.model_validate(target_options))
    drafter = build_part(TabularDrafter, TabularDrafterOptions.model_validate(drafter_options), BuildTools(target=target))
    decoder = Decoder(target, drafter, builder, verifier, sampling=SamplingParams(temperature=1.0))
    return prove_step(decoder, (0, 0), depth=1).tv
