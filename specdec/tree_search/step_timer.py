"""Costs measured where they arise: in decode steps whose tree has a given size, drafted by a given number of nodes a level."""

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from statistics import median
from time import perf_counter
from typing import ClassVar

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, DraftProbs, Frontier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import DraftRng, TargetRng
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch
from specdec.verifiers.match import Match

GOLDEN = 0.618
"""Of the vocabulary lies between two tokens of the texts that are measured on."""

COLUMNS = 8
"""Chains side by side in the trees that are scored."""


@dataclass(slots=True)
class Meter:
    """What the next step is to do, and the seconds of the levels of the last one.

    size: tokens to score, the root included; 1: nothing is drafted. width: nodes that the second level expands. chain: one
    column, for targets that score nothing else.
    """

    size: int = 1
    width: int = 1
    chain: bool = False
    levels: list[float] = field(default_factory=list)


class Metered(TreeBuilder[PartOptions]):
    """Asks the drafter for two levels and times each, ranking included; then returns a tree of the wanted size.

    What the drafter does not offer is filled up with tokens by number: the target takes no shorter for a bad draft.
    """

    name: ClassVar[str] = "metered"
    Options: ClassVar[type[PartOptions]] = PartOptions

    def __init__(self, meter: Meter, vocab_size: int) -> None:
        self._meter = meter
        self._vocab_size = vocab_size

    @classmethod
    def declares(cls, options: PartOptions) -> BuilderDeclaration:
        """Deterministic draws."""
        return BuilderDeclaration(Draw.DETERMINISTIC, Shape.TREE, frozenset(Gives))

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Metered":
        """Is made by hand: it needs a meter."""
        raise SpecdecError("a metered builder follows a meter and is not built from a spec")

    def grow(
        self,
        root_token: int,
        root_position: int,
        budget: Budget,
        rng: DraftRng,
    ) -> Generator[Frontier, Answer, DraftTree]:
        """Two levels, and a tree."""
        meter = self._meter
        meter.levels = []
        best: list[int] = []
        if meter.size > 1:
            asked = TreeSketch(root_token, root_position)
            best = yield from self._level(asked, (0,), meter.width)
            nodes = tuple(asked.add(0, token) for token in self._filled(best, meter.width))
            yield from self._level(asked, nodes, 1)
        sketch = TreeSketch(root_token, root_position)
        columns = 1 if meter.chain else COLUMNS
        tokens = self._filled(best, meter.size - 1)
        for number, token in enumerate(tokens):
            sketch.add(max(0, number + 1 - columns), token)
        return sketch.freeze(Draw.DETERMINISTIC)

    def _level(self, sketch: TreeSketch, nodes: tuple[int, ...], count: int) -> Generator[Frontier, Answer, list[int]]:
        began = perf_counter()
        answer = yield Frontier(sketch, nodes)
        if isinstance(answer, DraftProbs):
            raise SpecdecError("a metered builder ranks logits or candidates; it received a warped q")
        tokens, _ = answer.top(count)
        self._meter.levels.append(perf_counter() - began)
        return tokens[0]

    def _filled(self, best: list[int], count: int) -> list[int]:
        """`count` different tokens, the drafter's first."""
        known = dict.fromkeys(best[:count])
        for token in range(self._vocab_size):
            if len(known) >= count:
                break
            known.setdefault(token, None)
        return list(known)


def fresh_token(position: int, vocab_size: int) -> int:
    """A token all over the vocabulary; none stands at two positions before all have been used."""
    step = next(step for step in range(int(vocab_size * GOLDEN) + 1, 2 * vocab_size + 2) if gcd(step, vocab_size) == 1)
    return (position + 1) * step % vocab_size


class Wandering(Match):
    """`match`, and then another token than the target's, so that the text never repeats itself.

    In a loop, drafters that look things up are sure of what follows, and a mixture spares its others the work that is to be
    measured. A greedy target falls into loops.
    """

    name: ClassVar[str] = "wandering"

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Wandering":
        """Is made by hand: it needs a vocabulary."""
        raise SpecdecError("a wandering verifier changes what is emitted and is not built from a spec")

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        """What `match` does, with a fresh token."""
        verdict = super().verify(tree, target_probs, rng)
        position = tree.root_position + len(verdict.path) + 1
        return replace(verdict, next_token=fresh_token(position, self._vocab_size))


@dataclass(slots=True)
class Samples:
    """Seconds by what they were measured at. alone, together: of drafting for one sequence, and for all of a small batch."""

    forward: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    overhead: list[float] = field(default_factory=list)
    plain_overhead: list[float] = field(default_factory=list)
    first_level: list[float] = field(default_factory=list)
    level: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    def add(self, other: "Samples", slowness: float) -> None:
        """Take in other samples, divided by how slow the machine was when they were made."""
        for key, values in other.forward.items():
            self.forward[key] += [value / slowness for value in values]
        for width, values in other.level.items():
            self.level[width] += [value / slowness for value in values]
        self.overhead += [value / slowness for value in other.overhead]
        self.plain_overhead += [value / slowness for value in other.plain_overhead]
        self.first_level += [value / slowness for value in other.first_level]
        self.alone += [value / slowness for value in other.alone]
        self.together += [value / slowness for value in other.together]


def steadied(rounds: Sequence[Samples]) -> Samples:
    """All rounds together, each divided by how slow it was as a whole.

    A machine that does something else for a while slows all sizes alike: what counts is how the sizes of one round compare.
    Slowness is the median over sizes of the round's median against the median of all rounds.
    """
    typical = {key: median([median(samples.forward[key]) for samples in rounds]) for key in rounds[0].forward}
    together = Samples()
    for samples in rounds:
        together.add(samples, median([median(samples.forward[key]) / seconds for key, seconds in typical.items()]))
    return together
