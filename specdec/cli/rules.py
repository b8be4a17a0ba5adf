"""`compare-rules`: what every rule that fits would have accepted of the same drafts. `verify-rule`: is a function lossless?"""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.cli.output_files import check_ending_of, keep_inputs
from specdec.cli.profile import Count, progress_bar
from specdec.cli.terminal import (
    Json,
    Settings,
    Strategy,
    TargetModel,
    TemplateArguments,
    TrustRemoteCode,
    chat_format,
    guarded,
    hold,
    print_json,
    print_table,
)
from specdec.compose import build, resolve
from specdec.config.catalog import load_catalog
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecdecError
from specdec.files.atomic import write_whole
from specdec.files.locks import exclusive
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.interfaces.parts import Verifier, build_part
from specdec.interfaces.text_codec import ChatFormat

if TYPE_CHECKING:
    from specdec.losslessness.rules.comparison import RuleComparison
    from specdec.losslessness.rules.table import RuleRow


class DraftKind(StrEnum):
    """What `--drafts` takes."""

    CHAIN = "chain"
    ARGMAX_CHAIN = "argmax-chain"
    IID = "iid"
    WITHOUT_REPLACEMENT = "without-replacement"
    TOP = "top"


Prompts = Annotated[
    list[Path] | None,
    typer.Option("--prompts", metavar="FILE", help="JSON lines with questions. Repeatable. [default: 16 of specdec's own]"),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare-rules", help="Compare what verification rules accept of the same drafts, without decoding again.")(
        compare
    )
    app.command("verify-rule", help="Prove or refute a verification rule of your own: a function of rows, drafts and numbers.")(
        verify_rule_command
    )


@guarded
def verify_rule_command(
    rule: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="(p, q, drafts, uniforms) -> (accepted, next token).")],
    drafts: Annotated[DraftKind, typer.Option(help="A chain, or several drafts of one position.")] = DraftKind.CHAIN,
    count: Annotated[int, typer.Option(min=1, max=6, help="Drafted tokens.")] = 2,
    models: Annotated[int, typer.Option(min=1, max=100, help="Pairs of p and q.")] = 16,
    vocab: Annotated[
        int | None, typer.Option(min=2, max=16, help="Tokens of the models.", show_default="count + 1, at least 3")
    ] = None,
    json: Json = False,
) -> None:
    """Exit 0: the distribution is the target's on every pair. Exit 1: refuted, with the worst place and the direction."""
    from specdec.losslessness.external.callables import find_callable
    from specdec.losslessness.external.rules import Drafts, verify_rule

    function = find_callable(rule, "verify-rule", "a function (p, q, drafts, uniforms) -> (accepted, next token)")
    size = max(3, count + 1) if vocab is None else vocab
    found = verify_rule(function, Drafts(drafts.value), count, models=models, vocab_size=size)
    worst = max(found, key=lambda one: one.proof.tv)
    if json:
        print_json(
            {
                "rule": rule,
                "holds": worst.proof.holds,
                "total_variation": worst.proof.tv,
                "models": {one.model: {"tv": one.proof.tv, "accepted": one.proof.expected_accepted} for one in found},
            }
        )
    elif worst.proof.holds:
        typer.echo(f"{rule}: lossless on {len(found)} pairs of p and q of {size} tokens ({drafts.value}, {count} drafts)")
    else:
        typer.echo(
            f"{rule}: refuted, total variation {worst.proof.tv:.4g}, {worst.direction}\n"
            f"  model {worst.model}: {worst.proof.violations[0].words}"
        )
    if not worst.proof.holds:
        raise typer.Exit(1)


@guarded
def compare(
    strategy: Strategy,
    prompts: Prompts = None,
    count: Count = None,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Maximum number of tokens per answer.")] = 48,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all random draws.")] = 0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw a figure: .svg, .png or .pdf.")] = None,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    settings: Settings = None,
    template_arg: TemplateArguments = None,
    json: Json = False,
) -> None:
    """The strategy decodes each prompt once, and every lossless rule that fits is given the draft of each step.

    The random draws of the rule are integrated out: the figure is what it accepts on average of exactly these drafts.
    """
    from specdec.losslessness.rules.comparison import compare_rules
    from specdec.losslessness.rules.table import csv_text, draw_rules, rule_rows

    _claim(csv, plot, prompts or [])
    chat = chat_format(template_arg)
    catalog = load_catalog(trust_remote_code=trust)
    decoder = _comparable(resolve(strategy, catalog, settings=settings, target=target), catalog)
    asked = _prompts(decoder, prompts, count, chat)
    with progress_bar("prompts", len(asked)) as step:
        found = compare_rules(
            decoder, _lossless_rules(catalog), asked, max_new_tokens=max_new_tokens, seed=seed, on_prompt=step
        )
    rows = rule_rows(found)
    bound = sum(found.chain_bounds) / len(found.chain_bounds) if found.chain_bounds else None
    if csv is not None:
        write_whole(csv, csv_text(rows))
    if plot is not None:
        write_whole(plot, draw_rules(rows, f"{decoder.name}: {found.steps} drafts", plot, bound))
    if json:
        print_json(_plain(decoder.name, found, rows, bound))
    else:
        _print(decoder.name, found, rows, bound, len(asked))


def _comparable(resolved: ResolvedSpec, catalog: Catalog) -> Decoder:
    """Raises SpecError before the model is loaded where there is nothing to compare."""
    from specdec.losslessness.rules.comparison import check_comparable

    check_comparable(resolved.spec.sampling, resolved.parts[Kind.DRAFTER].declares, resolved.parts[Kind.TREE].declares)
    return build(resolved, catalog)


def _claim(csv: Path | None, plot: Path | None, inputs: list[Path]) -> None:
    """Keep the outputs for this command. Raises SpecError for one that could not be written afterwards."""
    for path in (csv, plot):
        if path is not None:
            keep_inputs(path, inputs)
            hold(exclusive(path))
    if plot is not None:
        check_ending_of(plot)


def _plain(name: str, found: "RuleComparison", rows: list["RuleRow"], bound: float | None) -> dict[str, Any]:
    """As JSON data."""
    rules = [asdict(row) for row in rows]
    return {"strategy": name, "steps": found.steps, "rules": rules, "chain_bound": bound, "do_not_fit": found.misfits}


def _lossless_rules(catalog: Catalog) -> dict[str, Verifier]:
    """Those whose options all have defaults."""
    rules: dict[str, Verifier] = {}
    for name, part in catalog.registry.parts[Kind.VERIFIER].items():
        try:
            rule = build_part(part.cls)
        except (SpecdecError, ValueError):
            continue
        if rule.declaration.guarantee is Guarantee.LOSSLESS:
            rules[name] = rule
    return rules


def _prompts(decoder: Decoder, files: list[Path] | None, count: int | None, chat: ChatFormat) -> list[list[int]]:
    from specdec.bench.prompts import Selection, read_questions
    from specdec.losslessness.real_prompts import prompts_for
    from specdec.tree_search.acceptance_run import first_turns

    if not files:
        return prompts_for(decoder.target, chat_format=chat)[:count]
    questions, _ = read_questions(files, Selection(count))
    return first_turns(questions, decoder.target.codec, decoder.target.facts, chat_format=chat)


def _print(name: str, found: "RuleComparison", rows: list["RuleRow"], bound: float | None, prompts: int) -> None:
    cells = [
        [
            row.rule,
            _interval(row.accepted, row.accepted_spread),
            "its own" if row.rule == found.own else _interval(row.against_own, row.against_own_spread, sign=True),
            "" if row.by_node is None else f"{row.by_node:.3f}",
            "" if row.optimum is None else f"{row.optimum:.3f}",
        ]
        for row in rows
    ]
    heads = ["rule", "accepted a step", f"more than {found.own}", "accepted a node", "at most"]
    print_table(f"{name}: {found.steps} drafts of {prompts} prompts", heads, cells)
    bound_by_node = ", ".join(sorted(row.rule for row in rows if row.optimum is not None))
    if bound_by_node:
        typer.echo(f"at most: the transport's optimum at the nodes that the rule comes to; it binds {bound_by_node}")
    if bound is not None:
        typer.echo(f"accepted a step, any rule on chains like these: at most {bound:.3f}")
    for rule, reason in found.misfits.items():
        typer.echo(f"{rule} does not fit: {reason}")


def _interval(value: float, spread: float | None, *, sign: bool = False) -> str:
    shown = f"{value:+.3f}" if sign else f"{value:.3f}"
    return shown if spread is None else f"{shown} ± {spread:.3f}"
