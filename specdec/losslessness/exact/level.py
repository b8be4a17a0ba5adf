"""The exact proof as a level: what enumeration said, in words and as data."""

import math
import time
from collections.abc import Iterator

from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.losslessness.exact.strategy import prove_strategy
from specdec.losslessness.levels import Level, LevelResult, Outcome, Progress
from specdec.losslessness.report import Instance, StrategyProof


def prove_exact(
    resolved: ResolvedSpec,
    catalog: Catalog,
    *,
    seconds: float,
    vocab_size: int | None,
    depth: int | None,
    models: int | None,
    progress: Progress,
) -> LevelResult:
    """Enumerate the strategy on stand-in models. seconds: of a nominal core. Raises PluginError for a part that fails."""
    began = time.monotonic()

    def advance(done: int, planned: int) -> None:
        progress(done / max(planned, 1), f"{done} of {planned} proofs")

    proof = prove_strategy(
        resolved, catalog, seconds=seconds, vocab_size=vocab_size, depth=depth, models=models, progress=advance
    )
    claims = resolved.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
    return LevelResult(
        Level.EXACT,
        _outcome(proof, claims=claims),
        _verdict(proof, claims=claims),
        tuple(_lines(proof, claims=claims)),
        _facts(proof, claims=claims),
        (),
        time.monotonic() - began,
    )


def _outcome(proof: StrategyProof, *, claims: bool) -> Outcome:
    if not claims and proof.instances:
        return Outcome.MEASURED
    if proof.refuted:
        return Outcome.REFUTED
    return Outcome.PROVED if proof.holds else Outcome.INCONCLUSIVE


def _verdict(proof: StrategyProof, *, claims: bool) -> str:
    if not claims and proof.instances:
        return "lossy (L0), as it declares"
    if proof.refuted:
        return "REFUTED: " + (proof.reason or "the output distribution is not the target's")
    if not proof.says_something:
        return "INCONCLUSIVE: too little could be enumerated"
    words = f"L3 distribution-{proof.coverage.places_words}; {proof.coverage.scope_words}"
    if proof.own_drafter != "none":
        return words
    return f"{words}; with a table in the place of drafter '{proof.drafter}', which was NOT run"


def _facts(proof: StrategyProof, *, claims: bool) -> dict[str, object]:
    return {
        "strategy": proof.strategy,
        "verdict": _verdict(proof, claims=claims),
        "proved": proof.holds,
        "conclusive": proof.conclusive,
        "reason": proof.reason,
        "tv": _finite(proof.tv),
        "expected_tau": _finite(proof.expected_tau),
        "first_accepted": _finite(proof.first_accepted),
        "best_first_accepted": _finite(proof.best_first_accepted),
        "drafter": _drafter(proof),
        "own_drafter": proof.own_drafter,
        "places": {
            "wanted": sorted(proof.coverage.wanted),
            "not_reached": sorted(proof.coverage.missing),
            "prefix_lengths": sorted(proof.coverage.lengths),
            "token_ids_below": proof.coverage.token_ids,
            "steps": proof.coverage.steps,
            "nodes": proof.coverage.nodes,
            "batch": proof.coverage.rows,
        },
        "covered": proof.covered,
        "left_out": proof.left_out,
        "instances": [_instance_facts(instance) for instance in proof.instances],
    }


def _instance_facts(instance: Instance) -> dict[str, object]:
    return {
        "model_seed": instance.model_seed,
        "temper": instance.temper,
        "vocab_size": instance.vocab_size,
        "temperature": instance.temperature,
        "steps": instance.steps,
        "own_drafter": instance.own_drafter,
        "prefix": instance.prefix,
        "tv": _finite(instance.proof.tv),
        "num_outcomes": instance.proof.num_outcomes,
        "expected_accepted": _finite(instance.proof.expected_accepted),
        "worst_prefix": instance.proof.worst_prefix,
        "worst_prefix_tv": instance.proof.worst_prefix_tv,
    }


def _drafter(proof: StrategyProof) -> str:
    name = f"'{proof.drafter}'"
    if not proof.instances or proof.own_drafter == "all":
        parts = " and ".join(f"'{part}'" for part in proof.table_parts)
        return f"{name} itself, with a TABLE in the place of its {parts}" if parts else f"{name} itself"
    if proof.own_drafter == "some":
        own = sum(i.own_drafter for i in proof.instances)
        return f"{name} itself in {own} proofs, a table in its place in {len(proof.instances) - own}"
    return f"a TABLE in the place of {name}: {proof.because or 'refuted with it, before its own turn came'}"


def _tau_words(proof: StrategyProof) -> str:
    if math.isnan(proof.expected_tau):
        return "not enumerated: the drafts share the target's noise"
    tau = f"{proof.expected_tau:.3f} tokens a step on these models"
    if math.isnan(proof.first_accepted) or math.isnan(proof.best_first_accepted):
        return tau
    return (
        f"{tau}; some first draft accepted with probability {proof.first_accepted:.3f}, by any lossless rule at most "
        f"{proof.best_first_accepted:.3f}"
    )


def _distance(proof: StrategyProof) -> str:
    if math.isnan(proof.tv):
        return "not measured: the drafts share the target's noise"
    return f"{proof.tv:.1e} at most"


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value


def _lines(proof: StrategyProof, *, claims: bool) -> Iterator[tuple[str, str]]:
    if proof.instances:
        temperatures = ", ".join(f"{t:g}" for t in sorted({i.temperature for i in proof.instances}))
        lengths = [len(i.prefix) for i in proof.instances]
        yield "total variation", f"{_distance(proof)}, in {len(proof.instances)} proofs at temperature {temperatures}"
        yield "E[tau]", _tau_words(proof)
        yield "drafter", _drafter(proof)
        yield "prefixes", f"{min(lengths)} to {max(lengths)} tokens long"
    for number, words in enumerate(proof.covered):
        yield "" if number else "enumerated", words
    for number, words in enumerate(proof.left_out):
        yield "" if number else "NOT enumerated", words
    worst = max(proof.instances, key=lambda i: i.proof.tv, default=None)
    if claims and worst is not None and proof.reason is None and worst.proof.violations:
        yield (
            "worst",
            f"{worst.proof.worst_prefix_tv:.3g} away from the target's distribution {worst.proof.violations[0].words}; "
            f"model {worst.model_seed} ({worst.temper}) of {worst.vocab_size} tokens",
        )
