"""What the probes at load share: what they run, example tokens, and how far two answers may be apart."""

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.interfaces.results import Scored
from specdec.targets.capability import Limits, MaskPlan
from specdec.targets.model_call import ModelCall
from specdec.trees.draft_tree import DraftTree

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}
"""Relative to the spread of the logits; what breaks a mask moves them by more."""


class ProbedRuntime(Protocol):
    """What a probe runs: any runtime of transformers models."""

    call: ModelCall
    masks: MaskPlan
    limits: Limits

    def prefill(self, prompts: Sequence[Sequence[int]], features: Features) -> Any:
        """A state, and what was scored."""

    def score(self, state: Any, trees: Sequence[DraftTree]) -> list[Scored]:
        """Logits of every new node."""

    def commit(self, state: Any, paths: Sequence[Sequence[int] | None]) -> None:
        """Keep the root and these paths."""


class _ChainsToo(ProbedRuntime, Protocol):
    def chains_only(self, because: str) -> Self:
        """The same for chains."""


RuntimeT = TypeVar("RuntimeT", bound=_ChainsToo)


def example_tokens(count: int, vocab_size: int, stride: int) -> list[int]:
    """Distinct enough, and the same every time."""
    return [(7 + stride * (index + 1) ** 2) % vocab_size for index in range(count)]


def logit_distance(expected: Tensor, got: Tensor) -> float:
    """Largest difference relative to the spread of the expected logits; infinite for NaN."""
    expected, got = expected.double(), got.double().to(expected.device)
    spread = float(expected.std().clamp_min(1e-12))
    distance = float((expected - got).abs().max()) / (spread * 10)
    return distance if distance == distance else float("inf")
