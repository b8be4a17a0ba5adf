"""The exact proof: the distribution of what was emitted, against the target's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from specdec.errors import SpecdecError
from specdec.losslessness.exact.places import Place
from specdec.losslessness.exact.toy_models import shown

TOLERANCE = 1e-12
"""Total variation that float64 rounding may leave."""

NextDistribution = Callable[[tuple[int, ...]], Sequence[float]]
"""Emitted tokens -> probability of each next token, under the target alone."""


@dataclass(frozen=True, slots=True)
class Emission:
    """One outcome: the emitted tokens, and how many of them were accepted drafts, by step."""

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """A prefix after which the next token's distribution is not the target's: the failing case, a path in the draft tree.

    reached: probability of getting there. got, wanted: [vocab] the distribution of the next token there, and the target's.
    tv: their distance; times `reached` it is what the prefix adds to the whole. one_step: whether the prefix is a path of one
    draft.
    """

    prefix: tuple[int, ...]
    reached: float
    got: tuple[float, ...]
    wanted: tuple[float, ...]
    one_step: bool = True

    @property
    def tv(self) -> float:
        return fsum(abs(a - b) for a, b in zip(self.got, self.wanted, strict=True)) / 2

    @property
    def words(self) -> str:
        """Where it is, what comes out there, and what should."""
        token = max(range(len(self.got)), key=lambda t: abs(self.got[t] - self.wanted[t]))
        where = f"after the emitted tokens {shown(self.prefix)}" if self.prefix else "at the root"
        node = f", at the node of that path (depth {len(self.prefix)})" if self.prefix and self.one_step else ""
        return (
            f"{where}{node}, reached with probability {self.reached:.4g}, the next token is {token} with probability "
            f"{self.got[token]:.6g}; the target's distribution gives {self.wanted[token]:.6g}"
        )


@dataclass(frozen=True, slots=True)
class ExactProof:
    """What enumeration found.

    tv: total variation between the distribution of the first `num_tokens` tokens and the target's; shorter outcomes are
    continued exactly by the target.
    expected_accepted: accepted draft tokens of a step, expected over the first step; the next token is not counted.
    accepted_at_least[i]: probability of more than i accepted tokens in the first step.
    worst_prefix: emitted tokens after which the next token's distribution is farthest from the target's, weighted by the
    probability of getting there; worst_prefix_tv: that conditional distance.
    violations: all prefixes after which the distribution is wrong, the worst first.
    drafted, tested: places of the drafts that were enumerated, and those of them at which a wrong rule could show.
    nodes: of the largest draft, the root not counted.
    best_first_accepted: the most that any lossless verifier could make of accepted_at_least[0] with these drafts; NaN if not
    asked for.
    """

    tv: float
    num_tokens: int
    num_outcomes: int
    expected_accepted: float
    accepted_at_least: tuple[float, ...]
    worst_prefix: tuple[int, ...]
    worst_prefix_tv: float
    violations: tuple[Violation, ...] = ()
    best_first_accepted: float = float("nan")
    drafted: frozenset[Place] = frozenset()
    tested: frozenset[Place] = frozenset()
    nodes: int = 0

    @property
    def holds(self) -> bool:
        """Whether the two distributions agree up to rounding."""
        return self.tv <= TOLERANCE


def prove(
    distribution: Mapping[Emission, float], next_distribution: NextDistribution, *, num_tokens: int | None = None
) -> ExactProof:
    """The exact distance between `distribution` and the target's own.

    num_tokens: length at which the distributions are compared; None: the longest outcome.
    Raises SpecdecError for an outcome with a token that the target does not have.
    *Source: theorem 0: lossless iff given that position i+1 is reached, with prefix x, its token follows p(.|x).*
    """
    vocab_size = len(next_distribution(()))
    strangers = [token for outcome in distribution for token in outcome.tokens if token not in range(vocab_size)]
    if strangers:
        raise SpecdecError(f"token {strangers[0]!r} was emitted; the target has {vocab_size} tokens")
    length = max(len(outcome.tokens) for outcome in distribution) if num_tokens is None else num_tokens
    reached = _reached(distribution, length)
    one_step = all(len(outcome.accepted) == 1 for outcome in distribution)
    differences = sorted(_differences(reached, next_distribution, one_step), key=lambda v: (-v.reached * v.tv, v.prefix))
    wrong = [v for v in differences if v.reached * v.tv > TOLERANCE]
    tv = _total_variation(reached, next_distribution, length)
    counts = _first_step_counts(distribution)
    return ExactProof(
        tv=tv,
        num_tokens=length,
        num_outcomes=len(distribution),
        expected_accepted=fsum(counts),
        accepted_at_least=counts,
        worst_prefix=differences[0].prefix if differences else (),
        worst_prefix_tv=differences[0].tv if differences else 0.0,
        violations=tuple(wrong or (differences[:1] if tv > TOLERANCE else ())),
    )


def _reached(distribution: Mapping[Emission, float], length: int) -> dict[tuple[int, ...], float]:
    """By prefix of at most `length` tokens, the probability that a run emits it (and perhaps more)."""
    masses: dict[tuple[int, ...], list[float]] = {}
    for outcome, mass in distribution.items():
        tokens = outcome.tokens[:length]
        for end in range(len(tokens) + 1):
            masses.setdefault(tokens[:end], []).append(mass)
    return {prefix: fsum(parts) for prefix, parts in masses.items()}


def _total_variation(reached: Mapping[tuple[int, ...], float], next_distribution: NextDistribution, length: int) -> float:
    differences: list[float] = []

    def descend(prefix: tuple[int, ...], extended: float, target: float) -> None:
        """`extended`: probability of `prefix` when runs that ended before are continued by the target.

        Below a prefix that no run exceeds both distributions are the target's, so that their distance stays what it is.
        """
        if len(prefix) == length:
            differences.append(abs(extended - target))
            return
        probs = next_distribution(prefix)
        going_on = fsum(reached.get((*prefix, token), 0.0) for token in range(len(probs)))
        if not going_on:
            differences.append(abs(extended - target))
            return
        for token, prob in enumerate(probs):
            longer = (*prefix, token)
            mass = reached.get(longer, 0.0) + (extended - going_on) * prob
            if mass or target * prob:
                descend(longer, mass, target * prob)

    descend((), 1.0, 1.0)
    return fsum(differences) / 2


def _differences(
    reached: Mapping[tuple[int, ...], float], next_distribution: NextDistribution, one_step: bool
) -> Iterator[Violation]:
    """Each prefix that some run exceeds, with the distribution of what comes next."""
    for prefix in sorted({longer[:-1] for longer in reached if longer}):
        wanted = tuple(next_distribution(prefix))
        masses = [reached.get((*prefix, token), 0.0) for token in range(len(wanted))]
        total = fsum(masses)
        if total > 0:
            yield Violation(prefix, total, tuple(mass / total for mass in masses), wanted, one_step)


def _first_step_counts(distribution: Mapping[Emission, float]) -> tuple[float, ...]:
    deepest = max(outcome.accepted[0] for outcome in distribution)
    return tuple(fsum(mass for o, mass in distribution.items() if o.accepted[0] > level) for level in range(deepest))
