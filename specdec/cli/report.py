"""`report` and `compare`: what is in result files, and how two of them differ."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec.cli.terminal import Json, guarded, print_json
from specdec.errors import SpecError
from specdec.files.atomic import write_whole


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("report", help="Turn the results of a benchmark into Markdown, CSV and pictures.")(report)
    app.command("compare", help="Compare two result files: the second against the first.")(compare)


@guarded
def report(
    file: Annotated[Path, typer.Argument(help="Results of `specdec bench`.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder to write. [default: the file's name and -report]"),
    ] = None,
    spec_bench: Annotated[
        bool, typer.Option("--spec-bench", help="Also write the answers as Spec-Bench answer files.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the report's files into a folder, and print the report."""
    from specdec.bench.baselines import GENERATE
    from specdec.bench.metrics import categories, summaries
    from specdec.bench.plot import draw
    from specdec.bench.results import read_results
    from specdec.bench.table import csv_table
    from specdec.bench.table import report as markdown

    results = read_results(file)
    if not results.measurements:
        raise SpecError(f"{file}: nothing has been measured yet; the same `specdec bench` resumes it")
    folder = output if output is not None else file.with_name(f"{file.stem}-report")
    text = markdown(results)
    write_whole(folder / "report.md", text + _pictures(draw(results, folder)))
    write_whole(folder / "summary.csv", csv_table(results))
    if spec_bench:
        _write_answers(results, folder)
    if json:
        chosen = [(cell, category) for cell in results.cells for category in (None, *categories(results, cell))]
        found = [s for cell, category in chosen for s in summaries(results, cell, category=category, versus=(GENERATE,))]
        print_json([asdict(summary) for summary in found])
        return
    typer.echo(text)
    typer.echo(f"written to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _pictures(paths: list[Path]) -> str:
    return "".join(f"\n![{path.stem}]({path.name})\n" for path in paths)


def _write_answers(results: Any, folder: Path) -> None:
    from specdec.bench.metrics import contenders
    from specdec.bench.plot import file_label
    from specdec.bench.spec_bench import write_answers
    from specdec.files.text_escapes import file_name

    for cell in results.cells:
        for name in contenders(results, cell):
            write_answers(results, cell, name, folder / f"answers-{file_name(name)}-{file_label(results, cell)}.jsonl")


@guarded
def compare(
    before: Annotated[Path, typer.Argument(help="Results of `specdec bench`, or answers of Spec-Bench.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="The same from another run.", show_default=False)],
    json: Json = False,
) -> None:
    """How many times faster the second is, question by question, and what else differs."""
    from specdec.bench.spec_bench import is_answer_file

    kinds = [is_answer_file(path) for path in (before, after)]
    if kinds[0] != kinds[1]:
        raise SpecError(f"{before} and {after}: one has answers of Spec-Bench, the other results of `specdec bench`")
    run: Callable[..., None] = _compare_answers if kinds[0] else _compare_results
    run(before, after, json=json)


def _compare_results(before: Path, after: Path, *, json: bool) -> None:
    from specdec.bench.compare import compare_results
    from specdec.bench.compare_table import comparison_lines
    from specdec.bench.results import read_results

    found = compare_results(read_results(before), read_results(after))
    if json:
        print_json({"pairs": [asdict(pair) for pair in found.pairs], "notes": found.notes})
        return
    typer.echo("\n".join(comparison_lines(found)))


def _compare_answers(before: Path, after: Path, *, json: bool) -> None:
    from specdec.bench.compare import compare_answers
    from specdec.bench.compare_table import answers_lines
    from specdec.bench.spec_bench import read_answers

    rows = compare_answers(read_answers(before), read_answers(after))
    if json:
        print_json([asdict(row) for row in rows])
        return
    typer.echo("\n".join(answers_lines(rows)))
