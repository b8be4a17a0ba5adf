"""What the runtime proof says."""

from typing import TYPE_CHECKING, Any

from specdec.interfaces.declarations import Guarantee, Kind
from specdec.losslessness.levels import Level, LevelResult, Outcome
from specdec.losslessness.runtime.near_ties import Ledger, listed

if TYPE_CHECKING:
    from specdec.losslessness.runtime.level import RuntimeProof


def judged(proof: "RuntimeProof", beside: "RuntimeProof | None", seconds: float) -> LevelResult:
    """The verdict, what it rests on, and all numbers."""
    faults, claims = proof.faults(), proof.resolved.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
    outcome, words = _verdict(proof, faults, claims=claims)
    ties = len(proof.ledger.divergences)
    lines = [
        ("dtype", proof.dtype),
        (
            "width noise",
            f"{proof.noise.logits:.2g} in the logits, {proof.noise.logits_share:.2g} of their spread, over "
            f"{proof.noise.tokens} tokens, alone and in wide forwards",
        ),
        ("trees", f"{proof.trees.trees} random trees, {proof.trees.nodes} nodes: {proof.trees.plain:.2g} from plain forwards"),
        ("one by one", f"{proof.trees.sequential:.2g} from the same target's plain steps"),
        ("cache", f"{proof.trees.recomputed:.2g} from a recomputation, after {proof.trees.commits} commits"),
        ("features", f"{proof.trees.features:.2g} from a prefill's; {proof.num_aligned} handed on, {proof.aligned:.2g} off"),
        (
            "ledger",
            f"{ties} of {proof.ledger.tokens} greedy tokens are not plain decoding's ({proof.ledger.rate:.2g} in 1,000), "
            f"all within {proof.limit:.2g}"
            if not proof.ledger.beyond(proof.limit)
            else f"gaps beyond {proof.limit:.2g}",
        ),
    ]
    lines += [("fault", fault) for fault in faults]
    if beside is not None:
        counts = ", ".join(f"{count} at {name}" for name, count in beside.ledger.histogram().items()) or "none"
        lines.append((beside.dtype, f"{beside.ledger.rate:.2g} in 1,000 tokens differ ({counts}): a rate, no pass"))
    return LevelResult(Level.RUNTIME, outcome, words, tuple(lines), _facts(proof, beside, faults), (), seconds)


def _verdict(proof: "RuntimeProof", faults: list[str], *, claims: bool) -> tuple[Outcome, str]:
    if not claims:
        return Outcome.MEASURED, f"lossy (L0), as it declares: {proof.ledger.rate:.3g} greedy tokens in 1,000 differ"
    if faults and proof.judges:
        return Outcome.REFUTED, faults[0]
    if not proof.judges:
        return Outcome.INCONCLUSIVE, f"rounding in {proof.dtype} hides faults: no pass is claimed; level bitwise is the gate"
    if not proof.ledger.tokens or not proof.trees.trees:
        return Outcome.INCONCLUSIVE, "the context leaves no room for an answer"
    return Outcome.PROVED, f"greedy up to ties (L2) in {proof.dtype}: trees, cache, features and ledger"


def _facts(proof: "RuntimeProof", beside: "RuntimeProof | None", faults: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "dtype": proof.dtype,
        "width_noise": {
            "logits": proof.noise.logits,
            "features": proof.noise.hidden,
            "logits_of_spread": proof.noise.logits_share,
            "features_of_spread": proof.noise.hidden_share,
            "tokens": proof.noise.tokens,
        },
        "near_tie_limit": proof.limit,
        "trees": {
            "trees": proof.trees.trees,
            "nodes": proof.trees.nodes,
            "commits": proof.trees.commits,
            "against_plain_forwards": proof.trees.plain,
            "against_sequential": proof.trees.sequential,
            "cache_against_recomputation": proof.trees.recomputed,
            "features_against_prefill": proof.trees.features,
            "features_handed_on": proof.aligned,
        },
        "faults": faults,
        "ledger": _ledger_facts(proof.ledger, proof.limit),
        "reference": proof.reference.words,
        "seed": proof.seed,
    }
    if beside is not None:
        facts["ledger_own_dtype"] = {"dtype": beside.dtype, **_ledger_facts(beside.ledger, None)}
    return facts


def _ledger_facts(ledger: Ledger, limit: float | None) -> dict[str, Any]:
    return {
        "tokens": ledger.tokens,
        "texts": ledger.texts,
        "divergences": len(ledger.divergences),
        "per_1000_tokens": ledger.rate,
        "largest_gap": ledger.largest,
        "histogram": ledger.histogram(),
        "listed": listed(ledger, limit),
    }
