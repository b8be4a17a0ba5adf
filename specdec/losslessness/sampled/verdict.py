"""What the sampled proof says."""

from typing import TYPE_CHECKING, Any

import numpy as np

from specdec.interfaces.declarations import Guarantee, Kind
from specdec.losslessness.exact.places import words as places_words
from specdec.losslessness.levels import Curve, Level, LevelResult, Outcome
from specdec.losslessness.sampled.cached_rows import RowRuns
from specdec.losslessness.sampled.evidence import Decision, Evidence, Leaning, decide
from specdec.losslessness.sampled.statistics import FALSE_ALARM, Floats

if TYPE_CHECKING:
    from specdec.losslessness.sampled.level import SampledProof

COARSE = 0.1
"""A run that could not have seen a leak of this total variation towards the drafter proves nothing."""

OFTEN = 100
"""Times that a draft is tried at a place, so that a rule which is wrong there alone has a chance to be seen."""

COARSE_ANYWHERE = 0.25
"""Nor does one of a decoder of which no drafter is known, if it could not have seen this much in the worst direction."""


def judged(proof: "SampledProof") -> LevelResult:
    """The verdict on all runs together."""
    evidence, decision = proof.evidence, decide(proof.evidence)
    found = {part.name: part.distances(len(decision.tests)) for part in evidence}
    claims = proof.resolved.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
    outcome, words = verdict(decision, found, claims=claims, leaning=Leaning.DRAFTER)
    rows = proof.rows
    if outcome is Outcome.PROVED and rows is not None:
        rarely = frozenset(place for place in rows.places if rows.tried[place] < OFTEN)
        words += f"; drafts were hardly tried at {places_words(rarely)}" if rarely else ""
    long = proof.long
    numeric = _numeric(proof)
    facts: dict[str, Any] = {
        "false_alarm_rate": FALSE_ALARM,
        "smallest_adjusted_p": decision.smallest,
        "tests": tests(decision),
        "total_variation": found,
        "seed": proof.seed,
        "prefixes": 0 if rows is None else rows.num_rows,
        "places_tried": [] if rows is None else [[*place, count] for place, count in sorted(rows.tried.items())],
        "tokens": {part.name: part.tokens for part in evidence},
        "impossible_tokens": sum(part.impossible for part in evidence),
        "tokens_at_the_edge_of_a_cut": long.edges,
        "numeric_tv": {"mean": float(numeric.mean()), "max": float(numeric.max()), "tokens": len(long.numeric)},
        "reference": long.reference.words,
        "independent_reference": long.reference.independent,
        "sampling": proof.resolved.spec.sampling.model_dump(mode="json", exclude_none=True),
    }
    return LevelResult(Level.SAMPLED, outcome, words, _lines(proof, decision, found), facts, curves(evidence, decision, found))


def _lines(proof: "SampledProof", decision: Decision, found: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the verdict rests on."""
    long, numeric = proof.long, _numeric(proof)
    lines = [
        ("p comes from", long.reference.words),
        ("long runs", f"{long.evidence.tokens:,} tokens in {len(long.texts)} texts of {len(long.prompts)} prompts"),
    ]
    if proof.rows is not None:
        rows = f"{proof.rows.evidence.tokens:,} tokens on {proof.rows.num_rows} real prefixes, every seed another"
        lines.append(("memoised rows", rows))
        if proof.rows.tried:
            lines.append(("places tried", _tried(proof.rows)))
    elif not proof.takes_tables:
        lines.append(("memoised rows", "none: the tree takes candidates only, and a table gives distributions"))
    if proof.joint:
        total = int(sum(made.counts.sum() for made in proof.joint))
        lines.append(("joint distribution", f"{total:,} times 3 tokens after {len(proof.joint)} fixed prefixes"))
    lines += statements(decision, found)
    if long.numeric:
        lines.append(
            ("rounding", f"the verification pass is TV {numeric.mean():.1e} from p on average, {numeric.max():.1e} at most")
        )
    return tuple(lines)


def _tried(rows: RowRuns) -> str:
    """At which places of the strategy's trees drafts were tried often, and at which hardly ever."""
    often = [place for place, count in rows.tried.items() if count >= OFTEN]
    rarely = rows.places - frozenset(often)
    found = f"{places_words(often)}, at least {OFTEN} times each" if often else "none often"
    return f"{found}; less often: {places_words(rarely)}" if rarely else found


def _numeric(proof: "SampledProof") -> Floats:
    """[tokens or 1] how far the verification pass was from p."""
    return np.array(proof.long.numeric or [0.0])


def verdict(decision: Decision, found: dict[str, Any], *, claims: bool, leaning: Leaning) -> tuple[Outcome, str]:
    """The outcome and its words. found: total variations by part. claims: whether the strategy says that it is lossless."""
    best = min((d[f"{leaning.key}_visible"] for d in found.values() if d), default=1.0)
    anywhere = min((d.get("anywhere_visible", 1.0) for d in found.values() if d), default=1.0)
    if not claims:
        lowest = max((d.get("estimated_at_least", 0.0) for d in found.values()), default=0.0)
        return Outcome.MEASURED, f"lossy (L0), as it declares: TV about {lowest:.3g} a token, or more"
    if decision.refuted_by:
        names = "; ".join(f"{t.name} (p {t.p_value:.1e})" for t in sorted(decision.refuted_by, key=lambda t: t.p_value)[:2])
        return Outcome.REFUTED, f"the tokens do not follow p: {names}"
    if not decision.tests or best > COARSE:
        return Outcome.INCONCLUSIVE, f"too few tokens: only a TV of {best:.2g} towards {leaning} would have been seen"
    if leaning is not Leaning.DRAFTER and anywhere > COARSE_ANYWHERE:
        return Outcome.INCONCLUSIVE, (
            f"nothing speaks against p, but no drafter is known to which a fault would lean, and in another direction one of "
            f"TV {anywhere:.2g} might not have been seen; more budget, or a cut such as top_p, would show more"
        )
    return Outcome.PROVED, "distribution up to numerics (L1), as far as these tokens can tell"


def statements(decision: Decision, found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is left possible, and what could have been seen."""
    lines = [
        ("tests", f"{len(decision.tests)}, smallest p {decision.smallest:.2g} after Holm; refuted below {FALSE_ALARM:.0e}")
    ]
    for name, distance in found.items():
        if not distance:
            continue
        leaning = next(one for one in Leaning if f"{one.key}_visible" in distance)
        words = f"TV <= {distance[f'{leaning.key}_at_most']:.2g} at 95 % towards {leaning}"
        if "anywhere_at_most" in distance:
            words += f", <= {distance['anywhere_at_most']:.2g} in any direction"
            words += f" (of it {distance['counted_together']:.2g} for rare tokens that were counted together)"
        lines.append((f"{name}", words))
        words = f"TV {distance[f'{leaning.key}_visible']:.2g} towards {leaning}"
        if "anywhere_visible" in distance:
            words += f", {distance['anywhere_visible']:.2g} in the worst direction"
        lines.append(("  could see", f"{words} (power 0.9)"))
    return lines


def tests(decision: Decision) -> list[dict[str, Any]]:
    """As JSON data."""
    return [
        {"name": t.name, "p_value": t.p_value, "adjusted": p, "samples": t.samples, "statistic": t.statistic}
        for t, p in zip(decision.tests, decision.adjusted, strict=True)
    ]


def curves(evidence: list[Evidence], decision: Decision, found: dict[str, Any]) -> tuple[Curve, ...]:
    """For the picture."""
    wealth = [part.curve() for part in evidence if part.tokens]
    p_values = [Curve("p", t.name, y=(p,)) for t, p in zip(decision.tests, decision.adjusted, strict=True)]
    bars = [Curve("tv", name, y=tuple(d.values()), labels=tuple(d)) for name, d in found.items() if d]
    return (*wealth, *p_values, *bars)
