"""`verify`: is the strategy lossless? An exact proof by enumeration on models of a few tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from specdec.cli.terminal import Json, Settings, Strategy, guarded, print_json
from specdec.compose import check, read, workshop
from specdec.contracts import Guarantee
from specdec.losslessness.report import StrategyProof
from specdec.losslessness.strategies import SECONDS, Progress, prove_strategy
from specdec.plugins import Kind

REFUTED = 1
INCONCLUSIVE = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help="Prove by enumeration, on small tables, that a strategy's output law is the target's.")(verify)


@guarded
def verify(
    strategy: Strategy,
    settings: Settings = None,
    budget: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Size of the proof, in seconds of a nominal core.")
    ] = SECONDS,
    vocab: Annotated[
        int | None, typer.Option(min=2, max=16, help="Tokens of all stand-in models.", show_default="4, 2 and 12")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Levels of the draft that are enumerated at most.", show_default="all that fit"),
    ] = None,
    models: Annotated[
        int | None, typer.Option(min=1, max=100, help="Stand-in models of a size.", show_default="8 or fewer")
    ] = None,
    json: Json = False,
) -> None:
    """Exit 0: proved. Exit 1: refuted; a lossy strategy reports its distance and exits 0, as it claims nothing.

    Exit 3: too little could be enumerated. Exit 2: a part failed or broke its contract.
    """
    shop = workshop()
    plan = check(read(strategy, shop, settings=settings or ()), shop)
    with _progress(plan.spec.name) as progress:
        proof = prove_strategy(plan, shop, seconds=budget, vocab_size=vocab, depth=depth, models=models, progress=progress)
    claims = plan.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
    if json:
        print_json(_report(proof, claims))
    else:
        typer.echo("\n".join(_lines(proof, claims)))
    if not proof.conclusive:
        raise typer.Exit(INCONCLUSIVE)
    if claims and not proof.holds:
        raise typer.Exit(REFUTED)


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"proving {name}", total=None)
        yield lambda done, planned: bar.update(task, completed=done, total=planned)


def _verdict(proof: StrategyProof, claims: bool) -> str:
    if not proof.conclusive:
        return "INCONCLUSIVE: too little could be enumerated"
    if not claims:
        return "lossy (L0), as it declares"
    if not proof.holds:
        return "REFUTED: " + (proof.reason or "the output law is not the target's")
    if proof.own_drafter == "none":
        return f"law-exact (L3) with a table in the place of drafter '{proof.drafter}', which was NOT run"
    return "law-exact (L3)"


def _report(proof: StrategyProof, claims: bool) -> dict[str, object]:
    return {
        "strategy": proof.strategy,
        "verdict": _verdict(proof, claims),
        "proved": proof.holds,
        "conclusive": proof.conclusive,
        "reason": proof.reason,
        "tv": proof.tv,
        "expected_tau": proof.expected_tau,
        "drafter": _drafter(proof),
        "own_drafter": proof.own_drafter,
        "covered": proof.covered,
        "left_out": proof.left_out,
        "instances": [
            {
                "model_seed": i.model_seed,
                "temper": i.temper,
                "vocab_size": i.vocab_size,
                "temperature": i.temperature,
                "steps": i.steps,
                "own_drafter": i.own_drafter,
                "prefix": i.prefix,
                "tv": i.proof.tv,
                "num_outcomes": i.proof.num_outcomes,
                "expected_accepted": i.proof.expected_accepted,
                "worst_prefix": i.proof.worst_prefix,
                "worst_prefix_tv": i.proof.worst_prefix_tv,
            }
            for i in proof.instances
        ],
    }


def _drafter(proof: StrategyProof) -> str:
    name = f"'{proof.drafter}'"
    if not proof.instances or proof.own_drafter == "all":
        return f"{name} itself"
    if proof.own_drafter == "some":
        own = sum(i.own_drafter for i in proof.instances)
        return f"{name} itself in {own} proofs, a table in its place in {len(proof.instances) - own}"
    return f"a TABLE in the place of {name}: {proof.because}"


def _lines(proof: StrategyProof, claims: bool) -> list[str]:
    lines = [f"{proof.strategy}: {_verdict(proof, claims)}"]
    if proof.instances:
        temperatures = ", ".join(f"{t:g}" for t in sorted({i.temperature for i in proof.instances}))
        lengths = [len(i.prefix) for i in proof.instances]
        lines += [
            f"  total variation  {proof.tv:.1e} at most, in {len(proof.instances)} proofs at temperature {temperatures}",
            f"  E[tau]           {proof.expected_tau:.3f} tokens a step on these models",
            f"  drafter          {_drafter(proof)}",
            f"  prefixes         {min(lengths)} to {max(lengths)} tokens long",
        ]
    lines += [f"  {title:16} {words}" for title, words in _coverage(proof)]
    if claims and proof.instances and not proof.holds and proof.reason is None:
        worst = max(proof.instances, key=lambda i: i.proof.tv)
        lines.append(
            f"  worst            {worst.proof.worst_prefix_tv:.3g} away from the target's law after "
            f"{list(worst.proof.worst_prefix)}, model {worst.model_seed} ({worst.temper}) of {worst.vocab_size} tokens"
        )
    return lines


def _coverage(proof: StrategyProof) -> Iterator[tuple[str, str]]:
    for number, words in enumerate(proof.covered):
        yield "" if number else "enumerated", words
    for number, words in enumerate(proof.left_out):
        yield "" if number else "NOT enumerated", words
