"""Tabular models on which decoders are proved: small enough to enumerate, mean enough to catch."""

from dataclasses import dataclass

from specdec.decoding.decoder import Decoder
from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder, Verifier, build_part
from specdec.interfaces.probability_table import RandomRows
from specdec.sampling.params import SamplingParams
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions

SHARPNESS = (1.0, 3.0)
ZEROS = (0.0, 0.3, 0.6)
HISTORY = 8
"""Tokens that a drawn row depends on: longer than any draft, so that rows differ at every depth and on every path."""


@dataclass(frozen=True, slots=True)
class Case:
    """A target, a drafter, and a prefix (prompt and root) from which to step."""

    name: str
    target: TabularTargetOptions
    drafter: TabularDrafterOptions
    prefix: tuple[int, ...] = (0, 0)


def drawn_case(number: int, *, vocab: int = 3) -> Case:
    """Case `number` of an endless list: with and without zeros, flat and sharp, q unlike p."""
    zeros, sharpness = ZEROS[number % len(ZEROS)], SHARPNESS[number // len(ZEROS) % len(SHARPNESS)]
    p = RandomRows(order=HISTORY, seed=2 * number, zeros=zeros, sharpness=sharpness)
    q = RandomRows(order=HISTORY, seed=2 * number + 1, zeros=zeros, sharpness=sharpness)
    return Case(
        name=f"drawn-{number}",
        target=TabularTargetOptions(vocab=vocab, random=p),
        drafter=TabularDrafterOptions(vocab=vocab, random=q),
        prefix=(number % vocab, 0),
    )


def tabular_decoder(
    case: Case,
    builder: type[TreeBuilder],
    builder_options: PartOptions,
    verifier: type[Verifier],
    verifier_options: PartOptions | None = None,
    *,
    sampling: SamplingParams | None = None,
) -> Decoder:
    """A decoder of these parts on the case's models; unlike compose it does not ask whether they fit together."""
    target = TabularTarget(case.target)
    tools = BuildTools(target=target)
    return Decoder(
        target,
        build_part(TabularDrafter, case.drafter, tools),
        build_part(builder, builder_options, tools),
        build_part(verifier, verifier_options, tools),
        sampling=sampling if sampling is not None else SamplingParams(temperature=1.0),
    )
