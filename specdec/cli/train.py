"""`train`: a draft head from a training spec. `distill`: conversations to train on, answered by the target itself."""

from pathlib import Path
from typing import Annotated

import typer

from specdec.cli.terminal import Settings, TargetModel, guarded
from specdec.compose import load
from specdec.training.conversations import read_messages
from specdec.training.distill import DistillPlan, distill, questions_of
from specdec.training.reading import read_training_spec
from specdec.training.run import log_to, trainer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("train", help="Train a draft head, or go on with a run that was stopped.")(train)
    data = typer.Typer(help="Data to train on.", no_args_is_help=True, rich_markup_mode=None)
    data.command("distill", help="Let the target answer questions, for a head to learn from.")(answer)
    app.add_typer(data, name="data")


@guarded
def train(
    spec: Annotated[Path, typer.Argument(help="A training spec.", show_default=False)],
    settings: Settings = None,
) -> None:
    """The run's folder gets log.jsonl, checkpoint.pt and the head that was best on held-out answers."""
    plan = read_training_spec(spec, tuple(settings or ()))
    trainer(plan, log_to(plan.output / "log.jsonl")).run()


@guarded
def answer(
    questions: Annotated[Path, typer.Argument(help="JSON lines with questions; answers in it are not looked at.")],
    output: Annotated[Path, typer.Argument(help="JSON lines to write; a file that is there is gone on with.")],
    target: TargetModel = None,
    strategy: Annotated[str, typer.Option(help="How to decode; a faster strategy gives the same answers.")] = "plain",
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of an answer.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 32,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Prints progress after each batch."""
    asked = questions_of(read_messages(questions))
    decoder = load(strategy, target=target)
    plan = DistillPlan(max_new_tokens=max_new_tokens, temperature=temperature, batch=batch, seed=seed)
    for done in distill(decoder, asked, plan, output):
        typer.echo(f"{done} of {len(asked)}")
