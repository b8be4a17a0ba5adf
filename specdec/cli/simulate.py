"""`simulate`: tau and speed-up of a tree from an acceptance profile and a cost model, without a model."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from specdec.cli.search import AcceptanceFile, CostFile
from specdec.cli.terminal import Json, Settings, fail, guarded, print_json, print_table
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.errors import SpecError
from specdec.performance.acceptance_profile import AcceptanceProfile, read_acceptance
from specdec.performance.cost_model import CostModel, read_costs
from specdec.tree_search.expected_tokens import expected_tokens
from specdec.tree_search.optimizer import Candidate, predicted, rates_for, replayed_tau
from specdec.tree_search.simulation import Played, Task, play, shape_of
from specdec.trees.tree_file import read_tree
from specdec.trees.tree_shape import TreeShape


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", help="Predict tau and speed-up from acceptance and costs, for example of another machine.")(
        simulate
    )


@guarded
def simulate(
    acceptance: AcceptanceFile,
    cost: CostFile,
    strategy: Annotated[
        str | None, typer.Argument(help="A strategy with a chain or a fixed tree, whose shape is used.", show_default=False)
    ] = None,
    tree: Annotated[str | None, typer.Option(help="A tree's name or .yaml file, instead of a strategy.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 128,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 128,
    answers: Annotated[int, typer.Option(min=2, help="Number of simulated answers.")] = 200,
    by_rank: Annotated[bool, typer.Option("--by-rank", help="Use one vector of rates for all depths.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the simulation.")] = 0,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Three methods side by side: the closed form, Monte Carlo, and a replay of the profile's answers if it has them."""
    label, shape = _shape(strategy, tree, settings)
    profile = read_acceptance(acceptance)
    if profile.reached and shape.depth > len(profile.reached):
        levels = f"{len(profile.reached)} levels and the tree has {shape.depth}"
        fail(f"warning: {acceptance} looks at {levels}: what lies below is guessed from the last level, or counts as nothing")
    predictions = _predict(
        shape,
        profile,
        read_costs(cost),
        Task(prompt_tokens, new_tokens, answers),
        by_rank=by_rank,
        seed=seed,
    )
    if json:
        print_json({"tree": label, "nodes": shape.num_nodes, "depth": shape.depth, **predictions.report()})
        return
    title = f"{label}: {shape.num_nodes} nodes, depth {shape.depth}; {predictions.basis}"
    print_table(title, ["", "tau", "speed-up", "tokens/s"], predictions.rows())
    plain = predictions.plain_seconds
    typer.echo(
        f"a step takes {1e3 * predictions.closed.step_seconds:.2f} ms, "
        f"plain decoding {1e3 * plain:.2f} ms ({1 / plain:.1f} tokens/s)"
    )


@dataclass(frozen=True, slots=True)
class Predictions:
    """One tree, predicted by every method that the profile allows."""

    basis: str
    closed: Candidate
    played: Played
    replayed: Candidate | None
    plain_seconds: float
    answers: int

    def rows(self) -> list[list[str]]:
        """For people."""
        played = self.played
        error = f" +- {2 * played.tau_error:.3f}"
        rows = [
            _row("closed form", self.closed),
            [
                f"Monte Carlo, {self.answers} answers",
                f"{played.tau:.3f}{error}",
                f"{played.speedup:.3f}",
                f"{played.tokens_per_second:.1f}",
            ],
        ]
        return rows if self.replayed is None else [*rows, _row("answers replayed", self.replayed)]

    def report(self) -> dict[str, Any]:
        """For programs."""
        played, replayed = self.played, self.replayed
        return {
            "basis": self.basis,
            "closed_form": _facts(self.closed),
            "monte_carlo": {
                "tau": played.tau,
                "tau_error": played.tau_error,
                "speedup": played.speedup,
                "tokens_per_second": played.tokens_per_second,
                "answers": self.answers,
            },
            "replayed": None if replayed is None else _facts(replayed),
            "plain_step_seconds": self.plain_seconds,
        }


def _row(name: str, one: Candidate) -> list[str]:
    return [name, f"{one.tokens:.3f}", f"{one.speedup:.3f}", f"{one.tokens / one.step_seconds:.1f}"]


def _facts(one: Candidate) -> dict[str, float]:
    return {"tau": one.tokens, "speedup": one.speedup, "step_seconds": one.step_seconds}


def _predict(
    shape: TreeShape, profile: AcceptanceProfile, costs: CostModel, task: Task, *, by_rank: bool, seed: int
) -> Predictions:
    rates = rates_for(profile, shape, by_rank=by_rank)
    context, drafted = task.mean_context, profile.drafted(shape)
    closed = predicted(shape, float(expected_tokens(shape, rates.children)), costs, context=context, drafted=drafted)
    replayed = None
    if profile.paths:
        replayed = predicted(shape, replayed_tau(profile, shape), costs, context=context, drafted=drafted)
    played = play(shape, rates, costs, task, seed=seed, drafted=drafted)
    basis = f"{profile.source}; {costs.source}"
    return Predictions(basis, closed, played, replayed, costs.plain(context), task.answers)


def _shape(strategy: str | None, tree: str | None, settings: list[str] | None) -> tuple[str, TreeShape]:
    """Its name, and the shape."""
    if (strategy is None) == (tree is None):
        raise SpecError("give either a strategy or --tree")
    if tree is not None and settings:
        raise SpecError(f"--set {settings[0]}: changes a strategy; --tree takes a tree as it is")
    catalog = load_catalog()
    if tree is not None:
        file = read_tree(catalog.library.find_tree(tree))
        return file.name, file.shape
    resolved = check(read(strategy or "", catalog, settings=settings or ()), catalog)
    return resolved.spec.name, shape_of(resolved)
