"""`train`: a draft head from a training spec. `data invent` and `data distill`: questions and answers from the target itself.

What they need is imported when they are called, so that other commands start without it.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from specdec.cli.output_files import keep_inputs
from specdec.cli.terminal import (
    Settings,
    TargetModel,
    TemplateArguments,
    TrustRemoteCode,
    fail,
    guarded,
    hold,
    template_arguments,
)
from specdec.compose import load
from specdec.errors import SpecdecError, SpecError

if TYPE_CHECKING:
    from specdec.training.conversations import Messages
    from specdec.training.distill import Failed, Skipped
    from specdec.training.draft_model_spec import DraftModelSpec
    from specdec.training.judge import JudgeSpec

SHOWN_TURNS = 3
"""Turns left out that are shown one by one."""

Decoding = Annotated[str, typer.Option("--strategy", help="How to decode; a faster strategy gives the same answers.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("train", help="Train a draft head, or resume a run that was stopped; or a judge or a draft model.")(train)
    data = typer.Typer(help="Make training data.", no_args_is_help=True, rich_markup_mode=None)
    data.command("distill", help="Let the target answer questions, for a head to learn from.")(answer)
    data.command("invent", help="Let the target make up questions, to be answered by `data distill`.")(ask)
    app.add_typer(data, name="data")


@guarded
def train(
    spec: Annotated[Path, typer.Argument(help="A training spec.", show_default=False)],
    settings: Settings = None,
    trust: TrustRemoteCode = None,
) -> None:
    """Writes log.jsonl, checkpoint.pt and the head that was best on held-out answers into the run's folder."""
    from specdec.training.draft_model_spec import DraftModelSpec
    from specdec.training.judge import JudgeSpec
    from specdec.training.reading import read_training_spec
    from specdec.training.run import claim_output, log_to, trainer

    plan = read_training_spec(spec, tuple(settings or ()), trust_remote_code=trust)
    if isinstance(plan, JudgeSpec):
        _train_judge(plan)
        return
    if isinstance(plan, DraftModelSpec):
        _distil(plan)
        return
    hold(claim_output(plan))
    log = log_to(plan.output / "log.jsonl")
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn()
    ) as bar:
        task = bar.add_task("features", total=1.0)

        def report(record: dict[str, Any]) -> None:
            log(record)
            if (line := _line(record)) is not None:
                bar.console.print(line, highlight=False)

        run = trainer(plan, report)
        run.on_step = lambda: bar.update(task, description=f"step {run.step}", completed=run.progress)
        if run.progress >= 1.0:
            bar.console.print(
                f"nothing is left to do: {run.spent}; a larger budget would resume it", highlight=False, soft_wrap=True
            )
        run.run()


def _distil(plan: "DraftModelSpec") -> None:
    from specdec.training.draft_model_run import distil_draft_model

    def report(record: dict[str, Any]) -> None:
        parts = {"alpha": "accepted at temperature 1", "tau": "tau of a greedy chain", "loss": "loss"}
        said = ", ".join(f"{words} {record[key]:.3f}" for key, words in parts.items() if key in record)
        typer.echo(f"step {record['step']}: {said}")

    distil_draft_model(plan, report)
    typer.echo(f"{plan.output / 'model'}: the draft model that was best on held-out answers")


def _train_judge(plan: "JudgeSpec") -> None:
    from specdec.training.run import judge_run

    found = judge_run(plan)
    typer.echo(
        f"{plan.output / 'head'}: a judge; of {found.right:,} right and {found.wrong:,} wrong held-out tokens it lets "
        f"{found.right_kept:.1%} and {found.wrong_kept:.1%} stay at a threshold of 0.5; area under the ROC {found.area:.3f}"
    )


def _line(record: dict[str, Any]) -> str | None:
    """The line that is printed for a log record; None if there is none."""
    if "features_missing" in record:
        missing = record["features_missing"]
        time = "" if missing["seconds"] is None else f", about {missing['seconds'] / 60:.0f} minutes"
        return f"features still to be computed: {missing['tokens']:,} tokens, {missing['gigabytes']:.2f} GB{time}"
    if "left_out" in record:
        turns = [turn for source in record["left_out"].values() for turn in source]
        more = [f"... and {len(turns) - SHOWN_TURNS} more, by name in log.jsonl"] if len(turns) > SHOWN_TURNS else []
        return "\n".join([f"{len(turns)} turns of the assistant are left out:", *turns[:SHOWN_TURNS], *more])
    if "covered" in record:
        return "draft vocabulary covers " + ", ".join(f"{share:.1%} of {name}" for name, share in record["covered"].items())
    if "tau" in record:
        alphas = " ".join(f"{alpha:.3f}" for alpha in record["alpha"])
        return f"step {record['step']}: {record['tokens']:,} tokens seen, tau {record['tau']:.3f}, n-alpha {alphas}"
    return None


@guarded
def answer(
    questions: Annotated[Path, typer.Argument(help="JSON lines with questions; answers in them are ignored.")],
    output: Annotated[Path, typer.Argument(help="JSON lines to write; an existing file is resumed.")],
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    strategy: Decoding = "plain",
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per answer.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 32,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    template_arg: TemplateArguments = None,
) -> None:
    """Prints progress after each batch; a question that cannot be asked is skipped and named.

    Where answers cannot be decoded, the other questions are answered; OUTPUT.failed.jsonl names them, and the exit code is 2.
    """
    from specdec.files.validation import checked
    from specdec.sampling.params import SamplingParams
    from specdec.training.conversations import read_messages
    from specdec.training.distill import DistillPlan, distill, questions_of

    for fault in checked(SamplingParams, {"temperature": temperature})[1].values():
        raise SpecError(f"--temperature: {fault}")
    keep_inputs(output, [questions])
    asked = questions_of(read_messages(questions, answered=False))
    if not asked:
        raise SpecError(f"{questions}: no questions in it")
    decoder = load(strategy, target=target, trust_remote_code=trust)
    arguments = template_arguments(template_arg)
    plan = DistillPlan(max_new_tokens, temperature, batch, seed, arguments)
    done, without = 0, _Unanswered(asked)
    for done in distill(decoder, asked, plan, output, without.skip, without.fail):
        typer.echo(f"{done} of {len(asked)}")
    if not done and not without.skipped:
        typer.echo(f"{output} has all {len(asked)} answers already")
    without.report(output)


class _Unanswered:
    """The questions without an answer, each named on stderr as it occurs."""

    def __init__(self, asked: Sequence["Messages"]) -> None:
        self._asked = asked
        self.skipped = list[int]()
        self.failed = list[int]()

    def skip(self, question: "Skipped") -> None:
        """One that cannot be asked."""
        self.skipped.append(question.number)
        fail(f"{self._named(question.number)} is skipped: {question.reason}")

    def fail(self, question: "Failed") -> None:
        """One whose answer cannot be decoded."""
        self.failed.append(question.number)
        fail(f"{self._named(question.number)} fails: {question.reason}")

    def report(self, output: Path) -> None:
        """Say how many there are. Raises SpecdecError where some failed."""
        from specdec.training.failed_questions import failures_path

        if self.skipped:
            typer.echo(f"{len(self.skipped)} of {len(self._asked)} questions were skipped")
        if self.failed:
            raise SpecdecError(
                f"{len(self.failed)} of {len(self._asked)} questions failed, and the others are answered; "
                f"{failures_path(output)} has the reasons, and the same command asks the failed ones again"
            )

    def _named(self, number: int) -> str:
        return f"question {number + 1} ({textwrap.shorten(self._asked[number][-1]['content'], 60, placeholder=' ...')!r})"


@guarded
def ask(
    count: Annotated[int, typer.Argument(min=1, help="Number of questions.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="JSON lines to write; an existing file is resumed.")],
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    strategy: Decoding = "plain",
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens per question; longer ones are left out.")
    ] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 32,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Samples questions at temperature 1 from the start of a user's turn, as in Magpie."""
    from specdec.training.synthetic_prompts import invent

    decoder, done = load(strategy, target=target, trust_remote_code=trust), 0
    for done in invent(decoder, count, output, max_new_tokens=max_new_tokens, batch=batch, seed=seed):
        typer.echo(f"{done} of {count}")
    if not done:
        has = sum(1 for line in output.read_bytes().splitlines() if line)
        typer.echo(f"{output} has {has} questions already" + (f", more than the {count} wanted" if has > count else ""))
