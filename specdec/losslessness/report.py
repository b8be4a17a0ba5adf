"""What the proofs of a strategy say."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from specdec.losslessness.exact.coverage import Coverage
from specdec.losslessness.exact.distance import TOLERANCE, ExactProof


@dataclass(frozen=True, slots=True)
class Instance:
    """One stand-in model, the sampling, and the proof. own_drafter: whether the strategy's own drafter ran.

    led: whether the model leads the draft to one of its nodes.
    """

    model_seed: int
    temper: str
    vocab_size: int
    temperature: float
    steps: int
    own_drafter: bool
    prefix: tuple[int, ...]
    proof: ExactProof
    led: bool = False


@dataclass(frozen=True, slots=True)
class StrategyProof:
    """The proofs of one strategy.

    own_drafter: 'all', 'some' or 'none' of the proofs ran the strategy's own drafter; because: why a table stood in.
    covered, left_out: in words, what was enumerated and what was not. reason: why it is refuted, where no distribution could
    be found.
    table_parts: of a drafter that asks others, those in whose place a table stood. coverage: which places of its trees.
    """

    strategy: str
    drafter: str
    because: str | None
    covered: tuple[str, ...]
    left_out: tuple[str, ...]
    instances: tuple[Instance, ...]
    reason: str | None = None
    table_parts: tuple[str, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def tv(self) -> float:
        """The largest total variation; NaN without a proof that found one."""
        found = [instance.proof.tv for instance in self.instances if not math.isnan(instance.proof.tv)]
        return max(found, default=float("nan"))

    @property
    def refuted(self) -> bool:
        """Whether some distribution is not the target's, or none could be found."""
        return self.reason is not None or self.tv > TOLERANCE

    @property
    def says_something(self) -> bool:
        """Whether more than two tokens were enumerated: with two, many a wrong rule is right."""
        return max((instance.vocab_size for instance in self.instances if instance.steps == 1), default=0) > 2

    @property
    def conclusive(self) -> bool:
        """Whether it is refuted, or every place of its trees was reached."""
        return self.refuted or (self.says_something and not self.coverage.missing)

    @property
    def holds(self) -> bool:
        """Whether every place of its trees was reached, and every distribution is the target's, up to rounding."""
        return self.conclusive and not self.refuted

    @property
    def own_drafter(self) -> str:
        """How many of the proofs ran the strategy's own drafter."""
        own = {instance.own_drafter for instance in self.instances}
        return "some" if len(own) > 1 else "all" if own == {True} else "none"

    @property
    def expected_tau(self) -> float:
        """Tokens of a step, next token included: the mean over single steps at the highest temperature.

        NaN without one, and where drafts share the target's noise: enumeration draws them apart.
        """
        return self._mean(lambda proof: 1 + proof.expected_accepted)

    @property
    def first_accepted(self) -> float:
        """Probability that some child of the root is accepted, a mean like `expected_tau`; NaN without one."""
        return self._mean(
            lambda proof: proof.expected_accepted if math.isnan(proof.expected_accepted) else sum(proof.accepted_at_least[:1])
        )

    @property
    def best_first_accepted(self) -> float:
        """The most that any lossless rule could make of that with the same drafts; NaN where it was not found."""
        return self._mean(lambda proof: proof.best_first_accepted)

    def _mean(self, value: Callable[[ExactProof], float]) -> float:
        """Over single steps at the highest temperature; NaN without one."""
        steps = [instance for instance in self.instances if instance.steps == 1 and not instance.led]
        hottest = max((instance.temperature for instance in steps), default=0.0)
        values = [value(i.proof) for i in steps if i.temperature == hottest]
        return sum(values) / len(values) if values else float("nan")
