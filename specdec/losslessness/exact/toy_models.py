"""Models of a few tokens in the place of a strategy's own: each is adversarial in another way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LENGTHS = (5, 2, 9, 34, 3, 130, 6, 17)
"""Tokens of the prefixes, root included; a fault that begins beyond the longest is not seen."""

HISTORY = 8
"""Tokens that a row depends on: longer than most drafts, so that rows differ at every depth and on every path."""

SHOWN = 6
"""Tokens of a long prefix that a message shows."""

LAST = -1
"""As a stop token: the highest id."""


@dataclass(frozen=True, slots=True)
class Temper:
    """How the rows of one kind of model look. p, q: (share of impossible tokens, sharpness). stops: its stop tokens."""

    name: str
    p: tuple[float, float] = (0.0, 1.0)
    q: tuple[float, float] = (0.0, 1.0)
    stops: tuple[int, ...] = ()
    apart: bool = False
    alike: bool = False


TEMPERS = (
    Temper("flat"),
    Temper("stopping", stops=(LAST,)),
    Temper("sharp", p=(0.0, 3.0), q=(0.0, 6.0)),
    Temper("zeros", p=(0.4, 1.0), q=(0.4, 2.0), stops=(0,)),
    Temper("apart", apart=True),
    Temper("overconfident", q=(0.0, 40.0), stops=(LAST,)),
    Temper("alike", alike=True),
    Temper("sparse", p=(0.6, 3.0), q=(0.3, 1.0)),
)
"""apart: p and q have no token in common; alike: q is p."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """A target and a drafter as parts of a spec, and a prefix (prompt and root) from which to step."""

    name: str
    vocab_size: int
    target: dict[str, Any]
    drafter: dict[str, Any]
    prefix: tuple[int, ...]


def stand_in(number: int, vocab_size: int) -> StandIn:
    """Model `number` of an endless list; every round of eight has other rows, roots and lengths."""
    temper = TEMPERS[number % len(TEMPERS)]
    rows, q_rows = _random(temper.p, 2 * number), _random(temper.q, 2 * number + (not temper.alike))
    p: dict[str, Any] = {"random": rows}
    q: dict[str, Any] = {"random": rows if temper.alike else q_rows}
    if temper.apart:
        p, q = ({"rows": {"*": _only(vocab_size, parity)}} for parity in (0, 1))
    part = {"use": "tabular", "vocab": vocab_size}
    stops = sorted({stop % vocab_size for stop in temper.stops})
    return StandIn(
        name=temper.name,
        vocab_size=vocab_size,
        target={**part, **p, "stop_ids": stops},
        drafter={**part, **q},
        prefix=_prefix(number, vocab_size, stops),
    )


def _random(distribution: tuple[float, float], seed: int) -> dict[str, float]:
    zeros, sharpness = distribution
    return {"order": HISTORY, "seed": seed, "zeros": zeros, "sharpness": sharpness}


def _only(vocab_size: int, parity: int) -> tuple[float, ...]:
    """Rising probabilities of the even, or the odd, tokens."""
    weights = [float(token + 1) * (token % 2 == parity) for token in range(vocab_size)]
    return tuple(weight / sum(weights) for weight in weights)


def _prefix(number: int, vocab_size: int, stops: list[int]) -> tuple[int, ...]:
    """Repeats itself, so that a drafter that looks for repetitions drafts; the root is no stop token."""
    roots = [token for token in range(vocab_size) if token not in stops]
    root = roots[(number + number // len(TEMPERS)) % len(roots)]
    length, period = LENGTHS[(number + vocab_size + 3 * (number // len(TEMPERS))) % len(LENGTHS)], 2 + number % 2
    return tuple((root + (length - 1 - place) % period) % vocab_size for place in range(length))


def shown(tokens: Sequence[int]) -> str:
    """A list of tokens for a message: of a long one its last tokens, and how many it has."""
    if len(tokens) <= SHOWN:
        return str(list(tokens))
    return f"[..., {', '.join(map(str, tokens[-SHOWN:]))}] ({len(tokens)} tokens)"
