"""Next-token probabilities written out, for models small enough to be proved exactly.

A row is found by the *history*: the tokens after the first `start` ones. An exact row wins, then the longest `*` row whose
tokens end the history, then a pseudo-random row.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from specdec.errors import SpecError
from specdec.interfaces.parts import PartOptions
from specdec.sampling.keyed_noise import mix, uniforms

SUM_TOLERANCE = 1e-9
MOST_TOKENS = 1 << 20
"""A row of as many probabilities takes 8 MB; no vocabulary in use has more tokens."""


def _number(value: Any) -> Any:
    try:
        return float(Fraction(value)) if isinstance(value, str) else value
    except (ValueError, ZeroDivisionError):
        return value


def _text_keys(value: Any) -> Any:
    """Keys as texts, rows as tuples: a strict reading takes no list for one once the mapping has been touched."""
    if not isinstance(value, Mapping):
        return value
    return {str(key): tuple(row) if isinstance(row, list) else row for key, row in value.items()}


Probability = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]


class RandomRows(PartOptions):
    """Pseudo-random rows, the same for the same seed on every machine."""

    order: Annotated[int, Field(ge=0, description="how many of the last tokens of the history a row depends on")] = 2
    seed: Annotated[int, Field(ge=0, lt=2**63, description="another seed gives another model")] = 0
    zeros: Annotated[float, Field(ge=0, le=1, description="share of tokens that are impossible in a row")] = 0.0
    sharpness: Annotated[float, Field(gt=0, description="1: uniform on the simplex; larger: more peaked")] = 1.0


class TableOptions(PartOptions):
    """A table of next-token probabilities."""

    vocab: Annotated[int, Field(ge=1, le=MOST_TOKENS, description="tokens, that is columns of every row")]
    rows: Annotated[
        dict[str, tuple[Probability, ...]],
        BeforeValidator(_text_keys),
        Field(
            description="history -> probabilities ('1/2' allowed): '' or '0,1' is a whole history, '*,0' any history "
            "that ends with 0, '*' any"
        ),
    ] = {}
    random: Annotated[RandomRows | None, Field(description="rows for the histories that `rows` leaves open")] = None
    start: Annotated[int, Field(ge=0, description="leading tokens (the prompt) that are no part of the history")] = 0

    @model_validator(mode="after")
    def _check_rows(self) -> "TableOptions":
        for key, row in self.rows.items():
            parse_history(key)
            if len(row) != self.vocab:
                raise ValueError(f"row '{key}' has {len(row)} probabilities; vocab is {self.vocab}")
            if abs(sum(row) - 1) > SUM_TOLERANCE:
                raise ValueError(f"row '{key}' sums to {sum(row)}, not 1")
        return self


def parse_history(key: str) -> tuple[bool, tuple[int, ...]]:
    """Whether the row's key is a whole history (not a `*` row), and its tokens. Raises ValueError."""
    words = [word.strip() for word in key.split(",")] if key.strip() else []
    whole = not words or words[0] != "*"
    tokens = words if whole else words[1:]
    if not all(word.isdecimal() for word in tokens):
        raise ValueError(f"row key '{key}' is not a history: write '', '0,1', '*' or '*,0'")
    return whole, tuple(map(int, tokens))


SMALL = 64
"""Tokens up to which all tables share their random rows."""

ROWS_KEPT = 1 << 15
"""Shared rows: at most 32 MB."""


class ProbabilityTable:
    """The rows of `TableOptions`, looked up by tokens."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._whole: dict[tuple[int, ...], Tensor] = {}
        self._endings: dict[tuple[int, ...], Tensor] = {}
        for key, row in options.rows.items():
            whole, tokens = parse_history(key)
            log_row = torch.tensor(row, dtype=torch.float64).log()
            (self._whole if whole else self._endings)[tokens] = log_row
        self._longest = max(map(len, self._endings), default=-1)
        self._random_rows: dict[tuple[int, ...], Tensor] = {}

    def log_probs(self, tokens: Sequence[int]) -> Tensor:
        """[vocab] float64 log-probabilities of the token after `tokens`, -inf where impossible.

        Raises SpecError when no row covers the history.
        """
        history = tuple(tokens[self._options.start :])
        if history in self._whole:
            return self._whole[history]
        for length in range(min(len(history), self._longest), -1, -1):
            ending = history[len(history) - length :]
            if ending in self._endings:
                return self._endings[ending]
        if self._options.random is None:
            key = ",".join(map(str, history))
            raise SpecError(f"the table has no row for the history '{key}'; a row '*' covers all histories without their own")
        return self._random_row(history, self._options.random)

    def _random_row(self, history: tuple[int, ...], options: RandomRows) -> Tensor:
        seen = history[max(0, len(history) - options.order) :]
        if seen not in self._random_rows:
            make = _small_row if self._options.vocab <= SMALL else _drawn_row
            row = make(self._options.vocab, options.seed, options.sharpness, options.zeros, seen)
            self._random_rows[seen] = row.clone()
        return self._random_rows[seen]


def _drawn_row(vocab: int, seed: int, sharpness: float, zeros: float, seen: tuple[int, ...]) -> Tensor:
    """[vocab] log-probabilities, a function of the arguments alone."""
    ids = torch.arange(vocab)
    weights = (-uniforms(mix(seed, 1, len(seen), *seen), ids).log()) ** sharpness
    dropped = uniforms(mix(seed, 2, len(seen), *seen), ids) < zeros
    dropped[weights.argmax()] = False
    weights = weights.masked_fill(dropped, 0.0)
    return (weights / weights.sum()).log()


_small_row = lru_cache(ROWS_KEPT)(_drawn_row)
"""Proofs make hundreds of tables that have most of their rows in common; each has copies of its own."""
