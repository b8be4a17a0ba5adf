"""Proofs of whole strategies: their builder and verifier on small tabular models, by enumeration."""

from collections.abc import Iterator
from dataclasses import dataclass

from specdec.compose import Plan, Workshop, build, check, read
from specdec.contracts import Gives
from specdec.distributions import Cuts, Sampling
from specdec.errors import SpecdecError
from specdec.losslessness.enumeration import prove_step
from specdec.losslessness.exact import TOLERANCE, ExactProof
from specdec.plugins import Kind

PREFIX = (0, 1, 0, 1, 0)
"""Repeats itself, so that a drafter that looks for repetitions drafts."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One stand-in model and the sampling under which the step was enumerated."""

    model_seed: int
    temperature: float
    proof: ExactProof


@dataclass(frozen=True, slots=True)
class StrategyProof:
    """The proofs of one strategy. drafter: what drafted on the stand-in, in words."""

    strategy: str
    drafter: str
    vocab_size: int
    depth: int
    instances: tuple[Instance, ...]

    @property
    def tv(self) -> float:
        """The largest total variation."""
        return max(instance.proof.tv for instance in self.instances)

    @property
    def holds(self) -> bool:
        """Whether every law is the target's, up to rounding."""
        return self.tv <= TOLERANCE

    @property
    def expected_tau(self) -> float:
        """Tokens of a step, next token included: the mean over the instances at the highest temperature."""
        hottest = max(instance.temperature for instance in self.instances)
        values = [1 + i.proof.expected_accepted for i in self.instances if i.temperature == hottest]
        return sum(values) / len(values)


def prove_strategy(plan: Plan, shop: Workshop, *, vocab_size: int, depth: int, models: int) -> StrategyProof:
    """Enumerate one step of `plan` on `models` pseudo-random tables of `vocab_size` tokens, drafting at most `depth` levels.

    A drafter that gives distributions is replaced by a table: verification is proved for any q. One that gives candidates
    runs as it is, on the table. Temperature 0 is proved beside temperature 1. Penalties and cuts stay; a token bias and a
    minimum length, which name tokens of the real model or count steps, are left out.
    Raises SpecdecError if there are too many outcomes to enumerate.
    """
    gives = plan.parts[Kind.DRAFTER].declares.gives
    drafter = "a table that stands in" if gives is Gives.DISTRIBUTIONS else f"'{plan.parts[Kind.DRAFTER].name}' itself"
    instances = [
        Instance(seed, sampling.temperature or 0.0, _prove(plan, shop, sampling, seed, vocab_size, depth))
        for sampling in _samplings(plan.spec.sampling)
        for seed in range(models)
    ]
    return StrategyProof(plan.spec.name, drafter, vocab_size, depth, tuple(instances))


def _samplings(sampling: Sampling) -> Iterator[Sampling]:
    own = sampling.model_copy(update={"logit_bias": {}, "min_new_tokens": 0})
    yield own
    if not own.temperature:
        yield own.model_copy(update={"temperature": 1.0})


def _prove(plan: Plan, shop: Workshop, sampling: Sampling, seed: int, vocab_size: int, depth: int) -> ExactProof:
    resolved = plan.resolved()
    table = {"use": "tabular", "vocab": vocab_size}
    resolved["target"] = {**table, "random": {"order": 2, "seed": seed}}
    if plan.parts[Kind.DRAFTER].declares.gives is Gives.DISTRIBUTIONS and plan.parts[Kind.DRAFTER].declares.drafts:
        resolved["drafter"] = {**table, "random": {"order": 1, "seed": 1000 + seed}}
    resolved["sampling"] = _plain(sampling)
    try:
        stand_in = check(read(resolved, shop), shop)
        return prove_step(build(stand_in, shop), PREFIX, depth=depth)
    except SpecdecError as error:
        raise SpecdecError(f"{plan.label}: cannot be proved on a table: {error}") from error


def _plain(sampling: Sampling) -> dict[str, object]:
    plain = sampling.model_dump(mode="json", exclude_none=True)
    if isinstance(sampling.draft, Cuts):
        plain["draft"] = sampling.draft.model_dump(mode="json", exclude_none=True)
    return plain
