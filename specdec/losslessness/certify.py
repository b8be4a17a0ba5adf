"""From what a verification found to a certificate of it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from specdec.config.certificate import PROVED, Certificate, LevelVerdict, MeasuredPrice, portable, spec_hash
from specdec.config.certification import installed, model_files, numerics, unlimited
from specdec.config.resolved_spec import ResolvedSpec
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.interfaces.parts import Target
from specdec.losslessness.levels import Level, LevelResult, Outcome
from specdec.losslessness.price.measured import Price


def certify(
    resolved: ResolvedSpec,
    target: Target,
    results: Sequence[LevelResult],
    *,
    price: Price | None,
    known_cases: Mapping[str, float],
    seed: int,
) -> Certificate:
    """The certificate of a resolved spec whose target is loaded.

    Args:
        resolved: The spec; its `max_tv` is no part of what is certified.
        target: Its target, loaded.
        results: Of the levels that were run.
        price: What was measured of a lossy rule; None: nothing.
        known_cases: A lossy rule's price on known pairs of p and q, by case.
        seed: Of the run.
    """
    plain = portable(unlimited(resolved))
    guarantee = resolved.parts[Kind.VERIFIER].declares.guarantee
    return Certificate.sealed(
        strategy=resolved.spec.name,
        guarantee=guarantee,
        spec=plain,
        spec_sha256=spec_hash(plain, guarantee),
        files=model_files(resolved),
        numerics=numerics(resolved, target),
        levels=tuple(_verdict(result) for result in results),
        measured=None if price is None else MeasuredPrice(**price.plain),
        known_cases=dict(known_cases),
        tv_at_most=_bound(guarantee, results, price),
        seed=seed,
        versions=installed(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _bound(guarantee: Guarantee, results: Sequence[LevelResult], price: Price | None) -> float:
    """Of a token's total variation: what was measured of a lossy rule, what the exact proof leaves of a lossless one, or 1."""
    if any(result.outcome is Outcome.REFUTED for result in results):
        return 1.0
    if guarantee is Guarantee.LOSSY:
        return 1.0 if price is None else price.upper_bound
    return PROVED if any((one.level, one.outcome) == (Level.EXACT, Outcome.PROVED) for one in results) else 1.0


def _verdict(result: LevelResult) -> LevelVerdict:
    return LevelVerdict(level=result.level.value, outcome=result.outcome.value, words=result.words, covered=result.lines)
