"""`generate`: answer a prompt, stream it, and say what speculation gained."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from specdec.cli import generate_options as flags
from specdec.cli.comparison import Comparison, compare
from specdec.cli.terminal import (
    Json,
    Settings,
    Strategy,
    TargetModel,
    TemplateArguments,
    TrustRemoteCode,
    fail,
    guarded,
    print_json,
    print_notes,
    template_arguments,
)
from specdec.compose import build, resolve
from specdec.config.catalog import load_catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.decoding.callbacks import StreamEvent
from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request, prompt_ids
from specdec.errors import SpecdecError, SpecError, TargetMismatch
from specdec.files.text_escapes import terminal_text
from specdec.interfaces.declarations import Guarantee
from specdec.interfaces.results import Generation
from specdec.interfaces.text_codec import TextCodec
from specdec.trees.draft_tree import Draw

ACCEPTED = "green"

MAX_DIGITS = 19
"""Of a token id in a prompt."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate", help="Answer a prompt; accepted draft tokens are coloured.")(generate)


@guarded
def generate(
    strategy: Strategy,
    prompt: flags.Prompt = None,
    prompt_file: flags.PromptFile = None,
    chat: flags.Chat = None,
    max_new_tokens: flags.MaxNewTokens = 128,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    settings: Settings = None,
    temperature: flags.Temperature = None,
    top_k: flags.TopK = None,
    top_p: flags.TopP = None,
    seed: flags.Seed = None,
    template_arg: TemplateArguments = None,
    control_tokens: flags.ControlTokens = "allow",
    keep_special_tokens: flags.KeepSpecialTokens = False,
    stop_ids: flags.StopIds = None,
    json_schema: flags.JsonSchema = None,
    regex: flags.Regex = None,
    against_plain: flags.AgainstPlain = False,
    trace: flags.TraceTo = None,
    certificate: flags.CertificateFile = None,
    json: Json = False,
) -> None:
    """Answer a prompt with a strategy, as the first request of a decoder in Python is answered."""
    text, arguments = flags.prompt_text(prompt, prompt_file), template_arguments(template_arg)
    form = flags.check_before_loading(control_tokens, trace, json_schema, regex)
    catalog, sampling = load_catalog(trust_remote_code=trust), flags.sampling_settings(temperature, top_k, top_p)
    resolved = resolve(strategy, catalog, settings=[*(settings or ()), *sampling], target=target)
    with redirect_stdout(sys.stderr) if json else nullcontext():
        decoder = build(resolved, catalog, certificate=certificate)
        ids = _prompt_ids(decoder.target.codec, text, chat=chat, arguments=arguments, control_tokens=control_tokens)
        options = flags.request_options(resolved, max_new_tokens, seed, stop_ids, form, keep_special_tokens=keep_special_tokens)
        if against_plain:
            decoder.generate([ids], max_new_tokens=min(8, max_new_tokens))
        generation = _traced(resolved, decoder, ids, options, trace, quiet=json)
        comparison = compare(decoder, generation, catalog, ids, options) if against_plain and generation.tokens else None
    _finish(resolved, decoder, generation, comparison, options, json=json)


def _finish(
    resolved: ResolvedSpec,
    decoder: Decoder,
    generation: Generation,
    comparison: Comparison | None,
    options: Mapping[str, Any],
    *,
    json: bool,
) -> None:
    """What stands after an answer, in JSON or in words."""
    _warn_of_cut(decoder, generation, options["max_new_tokens"])
    if json:
        print_json(_report(resolved, decoder, generation, comparison))
    else:
        lines = _endless(decoder, generation, options["stop_ids"]) if comparison is None else comparison.lines()
        print_notes([_summary(decoder, generation), *lines] if generation.tokens else [*lines])


def _endless(decoder: Decoder, generation: Generation, stop_ids: Sequence[int] | None) -> list[str]:
    """A hint for an answer that only its limit could have ended."""
    if generation.finish_reason != "length" or decoder.target.facts.stop_ids or stop_ids:
        return []
    return ["no token of this model is known to end an answer; --stop-id ID names one"]


def _warn_of_cut(decoder: Decoder, generation: Generation, max_new_tokens: int) -> None:
    """Say so where the context ended the answer."""
    if generation.finish_reason != "length" or len(generation.tokens) == max_new_tokens:
        return
    context = f"the context of {decoder.target.facts.context}"
    if not generation.tokens:
        fail(f"the prompt fills {context}: there is no room for an answer")
    else:
        fail(f"{context} ended it after {len(generation.tokens)} tokens")


def _prompt_ids(
    codec: TextCodec | None, text: str, *, chat: bool | None, arguments: Mapping[str, Any], control_tokens: str
) -> list[int]:
    """Ids of the prompt; text of plain numbers serves a model without a tokenizer."""
    if codec is None:
        words = text.replace(",", " ").split()
        if words and all(word.isdecimal() and len(word) < MAX_DIGITS for word in words):
            return [int(word) for word in words]
        raise SpecError("this target has no tokenizer: give the prompt as token ids, such as '1 2 3'")
    options: dict[str, Any] = {"chat_template_kwargs": arguments, "control_tokens": control_tokens}
    if chat is not False:
        try:
            return prompt_ids(Request([{"role": "user", "content": text}], **options), codec)
        except TargetMismatch:
            if chat or arguments:
                raise
    return prompt_ids(Request(text, **options), codec)


def _traced(
    resolved: ResolvedSpec, decoder: Decoder, ids: Sequence[int], options: dict[str, Any], path: Path | None, *, quiet: bool
) -> Generation:
    """Stream the answer, and record it if a trace is wanted."""
    if path is None:
        return _stream(decoder, ids, options, quiet=quiet)
    from specdec.trace.files import TraceFile
    from specdec.trace.recorder import Recorder

    with TraceFile(path) as file:
        recorder = Recorder(file, decoder, ids, resolved.plain(), options["seed"])
        generation = _stream(decoder, ids, {**options, "step_callback": recorder.step_callback}, quiet=quiet)
        recorder.finish(generation)
    return generation


def _stream(decoder: Decoder, ids: Sequence[int], options: dict[str, Any], *, quiet: bool) -> Generation:
    for event in _ended_lines(decoder.stream(list(ids), **options), quiet=quiet):
        if not quiet:
            pieces = event.pieces
            if decoder.target.codec is None:
                pieces = tuple((f"{token} ", source) for token, source in zip(event.tokens, event.sources, strict=True))
            for text, source in pieces:
                typer.secho(terminal_text(text), fg=ACCEPTED if source >= 0 else None, nl=False)
        if event.generation is not None:
            if not quiet:
                typer.echo()
            return event.generation
    raise SpecError("the stream ended without an answer")


def _ended_lines(events: Iterator[StreamEvent], *, quiet: bool) -> Iterator[StreamEvent]:
    """The events; if they break off, the current line is ended before the error is reported."""
    begun = False
    try:
        for event in events:
            yield event
            begun = True
    except SpecdecError:
        if begun and not quiet:
            typer.echo()
        raise


def guarantee_words(decoder: Decoder) -> str:
    """What the strategy promises of its output, in words; nothing is promised beyond the arithmetic of the target."""
    if decoder.verifier.declaration.guarantee is Guarantee.LOSSY:
        return f"lossy: not the target's distribution ({_price_words(decoder)})"
    if decoder.target.facts.bitwise and (
        not decoder.sampling.temperature or Draw.COUPLED in decoder.verifier.declaration.accepts
    ):
        return "plain decoding's own tokens, bit for bit"
    dtype = str(decoder.target.facts.dtype).removeprefix("torch.")
    rounding = "" if dtype in ("float32", "float64") else f" of {dtype}"
    if decoder.sampling.temperature:
        return f"the target's distribution, up to numerics{rounding}"
    return f"greedy, up to ties{rounding and f' and rounding{rounding}'}"


def _price_words(decoder: Decoder) -> str:
    """What a lossy rule costs: by the certificate, else on the known cases."""
    if decoder.certificate is not None:
        return decoder.certificate.verdict.removeprefix("lossy: ")
    from specdec.losslessness.price.known_cases import known_prices, worst_words

    return worst_words(known_prices(decoder.verifier))


def _summary(decoder: Decoder, generation: Generation) -> str:
    drafts = sum(record.accepted for record in generation.records)
    return " · ".join(
        [
            f"{decoder.name}: tau {generation.tau:.2f}" if generation.records else f"{decoder.name}: no step",
            f"{len(generation.tokens)} tokens, {drafts} of them drafted, in {generation.seconds:.2f} s",
            f"{generation.tokens_per_second:.1f} tokens/s",
            guarantee_words(decoder),
        ]
    )


def _report(resolved: ResolvedSpec, decoder: Decoder, generation: Generation, comparison: Comparison | None) -> dict[str, Any]:
    return {
        "strategy": resolved.spec.name,
        "text": generation.text,
        "tokens": generation.tokens,
        "prompt_tokens": len(generation.prompt_tokens),
        "finish_reason": generation.finish_reason,
        "stopped_by": generation.stopped_by,
        "tau": generation.tau,
        "draft_acceptance_rate": generation.draft_acceptance_rate,
        "alpha_at": generation.alpha_at(),
        "target_forwards": len(generation.records),
        "seconds": generation.seconds,
        "prefill_seconds": generation.prefill_seconds,
        "tokens_per_second": generation.tokens_per_second,
        "guarantee": generation.guarantee.value,
        "guarantee_words": guarantee_words(decoder),
        "seed": generation.seed,
        "certificate": None if generation.certificate is None else asdict(generation.certificate),
        "spec": resolved.plain(),
        "compare": None if comparison is None else comparison.report(),
    }
