"""The rules once more, in fractions and without tensors, trees or RNG: exact distributions to compare everything with.

Slow and plain on purpose. Every node of one level has the same number of children; rows are functions of the drafted path.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from specdec.errors import SpecdecError

Row = Sequence[Fraction]
Rows = Callable[[tuple[int, ...]], Row]
"""Drafted path -> probabilities of the next token."""

Rule = Callable[[Row, Row, tuple[int, ...]], Iterator[tuple[int | None, Fraction, Row]]]
"""(p, q, siblings in draw order) -> (accepted token or None, its probability, what the next token is then drawn from)."""

Drafts = Callable[[Row, int], Iterator[tuple[tuple[int, ...], Fraction]]]
"""(q, number of children) -> (siblings in draw order, probability)."""

Distribution = dict[tuple[tuple[int, ...], int], Fraction]
"""(emitted tokens, number of accepted drafts) -> probability."""

NOTHING = Fraction(0)


def iid(q: Row, count: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Draws with replacement."""
    if not count:
        yield (), Fraction(1)
        return
    for before, mass in iid(q, count - 1):
        yield from (((*before, token), mass * weight) for token, weight in enumerate(q) if weight)


def without_replacement(q: Row, count: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Draws without replacement, fewer once the support is used up."""
    if not count or not any(q):
        yield (), Fraction(1)
        return
    for token, weight in enumerate(q):
        if weight:
            rest = [NOTHING if t == token else w for t, w in enumerate(q)]
            for after, mass in without_replacement(_normalised(rest, rest), count - 1):
                yield (token, *after), weight * mass


def likeliest(q: Row, count: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """The top of q, ties to the lower token, impossible ones left out."""
    best = sorted((token for token, weight in enumerate(q) if weight), key=lambda token: (-q[token], token))
    yield tuple(best[:count]), Fraction(1)


def match(p: Row, q: Row, drawn: tuple[int, ...]) -> Iterator[tuple[int | None, Fraction, Row]]:
    """One draw from p; a child that equals it is accepted. *Source: arXiv 2408.07978.*"""
    for token in dict.fromkeys(drawn):
        yield token, p[token], p
    left = [NOTHING if token in drawn else weight for token, weight in enumerate(p)]
    yield None, sum(left, NOTHING), _normalised(left, p)


def point_mass(p: Row, q: Row, drawn: tuple[int, ...]) -> Iterator[tuple[int | None, Fraction, Row]]:
    """Each child is accepted with what p has become, else struck out."""
    reached, left = Fraction(1), p
    for token in drawn:
        yield token, reached * left[token], left
        reached *= 1 - left[token]
        left = _normalised([NOTHING if t == token else weight for t, weight in enumerate(left)], left)
    yield None, reached, left


def multi_round(p: Row, q: Row, drawn: tuple[int, ...], *, replacement: bool) -> Iterator[tuple[int | None, Fraction, Row]]:
    """Each child is accepted with min(1, p/q), else p becomes the residual. *Source: arXiv 2305.09781, 2402.14160.*"""
    reached, left = Fraction(1), p
    for token in drawn:
        accepted = min(Fraction(1), left[token] / q[token])
        yield token, reached * accepted, left
        reached *= 1 - accepted
        left = _normalised([max(NOTHING, a - b) for a, b in zip(left, q, strict=True)], left)
        if not replacement:
            rest = [NOTHING if t == token else weight for t, weight in enumerate(q)]
            q = _normalised(rest, rest)
    yield None, reached, left


def chain(p: Row, q: Row, drawn: tuple[int, ...]) -> Iterator[tuple[int | None, Fraction, Row]]:
    """Speculative sampling of one draft a level. *Source: arXiv 2211.17192, algorithm 1.*"""
    if len(drawn) > 1:
        raise SpecdecError(f"a chain has one child per node, not {len(drawn)}")
    yield from multi_round(p, q, drawn, replacement=True)


def step_distribution(p: Rows, q: Rows, widths: Sequence[int], drafts: Drafts, rule: Rule) -> Distribution:
    """The distribution of one step that drafts widths[i] children at level i."""
    distribution: Distribution = {}

    def emit(path: tuple[int, ...], reached: Fraction, row: Row) -> None:
        for token, weight in enumerate(row):
            if reached * weight:
                key = ((*path, token), len(path))
                distribution[key] = distribution.get(key, NOTHING) + reached * weight

    def visit(path: tuple[int, ...], reached: Fraction) -> None:
        if len(path) == len(widths):
            emit(path, reached, p(path))
            return
        for drawn, mass in drafts(q(path), widths[len(path)]):
            for token, accepted, left in rule(p(path), q(path), drawn):
                if not accepted:
                    continue
                if token is None:
                    emit(path, reached * mass * accepted, left)
                else:
                    visit((*path, token), reached * mass * accepted)

    visit((), Fraction(1))
    return distribution


def accepted_at_least(distribution: Distribution, levels: int) -> list[Fraction]:
    """By level i from 1: the probability that i drafts are accepted; their sum is the expected number."""
    return [
        sum((mass for (_, count), mass in distribution.items() if count >= level), NOTHING) for level in range(1, levels + 1)
    ]


def total_variation(distribution: Distribution, p: Rows, length: int) -> Fraction:
    """Distance of the first `length` tokens, continued by p where a step emits fewer, from p's own."""
    extended: dict[tuple[int, ...], Fraction] = {}

    def go_on(tokens: tuple[int, ...], mass: Fraction, into: dict[tuple[int, ...], Fraction]) -> None:
        if len(tokens) == length:
            into[tokens] = into.get(tokens, NOTHING) + mass
            return
        for token, weight in enumerate(p(tokens)):
            if mass * weight:
                go_on((*tokens, token), mass * weight, into)

    own: dict[tuple[int, ...], Fraction] = {}
    go_on((), Fraction(1), own)
    for (tokens, _), mass in distribution.items():
        go_on(tokens[:length], mass, extended)
    return sum((abs(extended.get(t, NOTHING) - own.get(t, NOTHING)) for t in own.keys() | extended.keys()), NOTHING) / 2


def _normalised(weights: Row, otherwise: Row) -> Row:
    total = sum(weights, NOTHING)
    return [weight / total for weight in weights] if total else otherwise
