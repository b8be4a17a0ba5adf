"""`verify`: is the strategy lossless? An exact proof by enumeration on small tabular models."""

from typing import Annotated

import typer

from specdec.cli.terminal import Json, Settings, Strategy, guarded, print_json
from specdec.compose import check, read, workshop
from specdec.contracts import Guarantee
from specdec.losslessness.strategies import StrategyProof, prove_strategy
from specdec.plugins import Kind


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help="Prove by enumeration, on small tables, that a strategy's output law is the target's.")(verify)


@guarded
def verify(
    strategy: Strategy,
    settings: Settings = None,
    vocab: Annotated[int, typer.Option(min=2, max=8, help="Tokens of the stand-in models.")] = 3,
    depth: Annotated[int, typer.Option(min=1, max=6, help="Levels of the draft that are enumerated.")] = 2,
    models: Annotated[int, typer.Option(min=1, max=100, help="Stand-in models, drawn by seed.")] = 3,
    json: Json = False,
) -> None:
    """Exit 0: proved. Exit 1: refuted; a lossy strategy reports its distance and exits 0, as it claims nothing."""
    shop = workshop()
    plan = check(read(strategy, shop, settings=settings or ()), shop)
    proof = prove_strategy(plan, shop, vocab_size=vocab, depth=depth, models=models)
    claims = plan.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
    if json:
        print_json(_report(proof, claims))
    else:
        typer.echo("\n".join(_lines(proof, claims)))
    if claims and not proof.holds:
        raise typer.Exit(1)


def _verdict(proof: StrategyProof, claims: bool) -> str:
    if not claims:
        return "lossy (L0), as it declares"
    return "law-exact (L3)" if proof.holds else "REFUTED: the output law is not the target's"


def _report(proof: StrategyProof, claims: bool) -> dict[str, object]:
    return {
        "strategy": proof.strategy,
        "verdict": _verdict(proof, claims),
        "proved": proof.holds,
        "tv": proof.tv,
        "expected_tau": proof.expected_tau,
        "drafter": proof.drafter,
        "vocab_size": proof.vocab_size,
        "depth": proof.depth,
        "instances": [
            {
                "model_seed": i.model_seed,
                "temperature": i.temperature,
                "tv": i.proof.tv,
                "num_outcomes": i.proof.num_outcomes,
                "expected_accepted": i.proof.expected_accepted,
                "worst_prefix": i.proof.worst_prefix,
                "worst_prefix_tv": i.proof.worst_prefix_tv,
            }
            for i in proof.instances
        ],
    }


def _lines(proof: StrategyProof, claims: bool) -> list[str]:
    temperatures = ", ".join(f"{t:g}" for t in sorted({i.temperature for i in proof.instances}))
    lines = [
        f"{proof.strategy}: {_verdict(proof, claims)}",
        f"  total variation  {proof.tv:.1e} at most, over {len(proof.instances)} models and temperatures {temperatures}",
        f"  E[tau]           {proof.expected_tau:.3f} tokens a step on these models",
        f"  drafter          {proof.drafter}; {proof.vocab_size} tokens, {proof.depth} levels, every outcome enumerated",
    ]
    if claims and not proof.holds:
        worst = max(proof.instances, key=lambda i: i.proof.tv).proof
        lines.append(f"  worst after      {list(worst.worst_prefix)}: {worst.worst_prefix_tv:.3g} away from the target's law")
    return lines
