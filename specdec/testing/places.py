"""Every place of a tree, prefixes of every length and later steps of a batch, for the checks of builders and verifiers."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdec.decoding.decoder import Decoder
from specdec.drafters.ngram import NgramDrafter, NgramOptions
from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.interfaces.declarations import Gives
from specdec.interfaces.parts import PartOptions, TreeBuilder, Verifier
from specdec.losslessness.exact.coverage import Coverage
from specdec.losslessness.exact.place_proofs import LENGTHS, STEPS, PlaceProver
from specdec.losslessness.exact.ranked_table import RankedTable
from specdec.losslessness.exact.toy_models import StandIn
from specdec.losslessness.report import Instance
from specdec.sampling.params import SamplingParams
from specdec.testing.proving import GREEDY, HOT, SMALL, Partner, decoder_of, judged, misfit, models_of, table_drafter, target_of
from specdec.testing.report import Checked
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.pair import Pair as PairBuilder
from specdec.tree_builders.pair import PairOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.trees.draft_tree import Draw
from specdec.trees.tree_shape import RankPath, TreeShape

SECONDS = 24.0
"""Nominal, of all places of one kind of tree."""

PATIENCE = 240.0
"""Seconds that they may really take."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A builder and a verifier, each with its options, one of which is under test. words: the other one."""

    builder: tuple[type[TreeBuilder], PartOptions]
    verifier: tuple[type[Verifier], PartOptions]
    words: str

    def decoder(self, model: StandIn, sampling: SamplingParams) -> Decoder:
        """Around the model's target and the drafts of its table, given as the builder takes them."""
        cls, options = self.builder
        if Gives.DISTRIBUTIONS in cls.declares(options).needs:
            return decoder_of(target_of(model), table_drafter(model), self.builder, self.verifier, sampling)
        drafter = (NgramDrafter, NgramOptions(min_confidence=0.0))
        decoder = decoder_of(target_of(model), drafter, self.builder, self.verifier, sampling)
        return decoder.replace(drafter=RankedTable(TabularDrafter(table_drafter(model)[1], decoder.target)))


SHAPE = (
    *((0, 0, 0, 0, 0, 0, 0, 0), (3,), (0, 3), (1, 1), (2, 0), (3, 0)),
    *((0, 0, 2), (0, 1, 0), (1, 0, 0), (0, 0, 0, 1)),
)
"""Of a tree with up to four siblings on its first two levels, children below each of them, and eight levels: its last nodes."""

FEWER = tuple(path for path in SHAPE if max(path) < 3)
"""With three siblings at most: four of i.i.d. draws take minutes."""


def _paths(ends: Sequence[RankPath]) -> tuple[RankPath, ...]:
    """All nodes on the way to these, with their earlier siblings."""
    every = {(*path[:size], rank) for path in ends for size in range(len(path)) for rank in range(path[size] + 1)}
    return TreeShape.of(sorted(every, key=lambda path: (len(path), path))).paths


PLACES: Mapping[Draw, tuple[Partner, Partner]] = {
    Draw.IID: (
        Partner(Chain, ChainOptions(length=8, draw="sampled"), 3),
        Partner(Sampled, SampledOptions(paths=_paths(FEWER), replacement=True), 3),
    ),
    Draw.WITHOUT_REPLACEMENT: (
        Partner(Sampled, SampledOptions(widths=(1,) * 8), 3),
        Partner(Sampled, SampledOptions(paths=_paths(SHAPE)), 3),
    ),
    Draw.DETERMINISTIC: (
        Partner(Chain, ChainOptions(length=8), 3),
        Partner(Dynamic, DynamicOptions(width=6, depth=8, nodes=16), 3),
    ),
    Draw.TOP_THEN_ONE: (
        Partner(TopThenOne, TopThenOneOptions(widths=(1,) * 8), 3),
        Partner(TopThenOne, TopThenOneOptions(paths=_paths(SHAPE)), 3),
    ),
    Draw.PAIR: (
        Partner(PairBuilder, PairOptions(depth=1), 3),
        Partner(PairBuilder, PairOptions(depth=3), 3),
    ),
    Draw.COUPLED: (
        Partner(Coupled, CoupledOptions(widths=(1,) * 8), 3),
        Partner(Coupled, CoupledOptions(paths=_paths(SHAPE)), 3),
    ),
}
"""By kind of draw, a chain and a tree whose every place is looked at."""


def fits(pair: Pair) -> bool:
    """Whether the contract lets them work together."""
    return not misfit(pair.decoder(models_of(SMALL, 1)[0], HOT))


def prove_places(pair: Pair, report: Checked, *, lossless: bool = True, everything: bool = True) -> Coverage:
    """What was covered. everything: prefixes of every length and later steps too. Raises CheckFailed."""

    def on_proof(instance: Instance) -> bool:
        steps = "" if instance.steps == 1 else f" in step {instance.steps} of a batch"
        words = f"{pair.words} at temperature {instance.temperature:g}{steps}"
        judged(instance.proof, instance.temper, instance.vocab_size, instance.prefix, words, report, lossless)
        return True

    cls, options = pair.builder
    prover = PlaceProver(
        decoder_for=pair.decoder,
        own=False,
        samplings=(HOT, GREEDY),
        declares=cls.declares(options),
        seconds=SECONDS,
        deadline=time.monotonic() + PATIENCE,
        depth=None,
        vocab_size=None,
        on_proof=on_proof,
        lengths=LENGTHS if everything else (),
        later_steps=STEPS if everything else (),
    )
    prover.run()
    return prover.coverage
