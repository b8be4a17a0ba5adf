"""Writes down what a decoder does, step by step."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.decoding.callbacks import StepInfo
from specdec.decoding.decoder import Decoder
from specdec.decoding.detokenizer import text_of, token_text
from specdec.interfaces.results import Generation
from specdec.trace.files import TraceFile
from specdec.trace.steps import TraceEnd, TraceHeader, TraceStep, drawn_q, ending_of, visited_p


class Recorder:
    """Records the one sequence of a stream; `step_callback` is what the decoder is given."""

    def __init__(self, file: TraceFile, decoder: Decoder, prompt: Sequence[int], spec: Mapping[str, Any], seed: int) -> None:
        self._file = file
        self._codec = decoder.target.codec
        file.begin(
            TraceHeader(
                strategy=decoder.name,
                drafters=drafter_names(spec.get("drafter", {})),
                verifier=type(decoder.verifier).name,
                target=decoder.target.facts.description,
                guarantee=decoder.verifier.declaration.guarantee.value,
                seed=seed,
                prompt_tokens=tuple(prompt),
                spec=spec,
                prompt_text=None if self._codec is None else text_of(self._codec, prompt),
            )
        )

    def step_callback(self, info: StepInfo) -> None:
        """Write down one step."""
        tree, verdict, record = info.tree, info.verdict, info.record
        last = verdict.path[-1] if verdict.path else 0
        self._file.step(
            TraceStep(
                root_position=tree.root_position,
                tokens=tree.tokens,
                texts=tuple(token_text(self._codec, token) for token in tree.tokens),
                parents=tree.parents,
                source=tree.source,
                draws=dict(tree.draw_order),
                draw={parent: kind.value for parent, kind in tree.draw_kind.items()},
                p=tuple(visited_p(tree, verdict.path, info.target_probs)),
                q=tuple(drawn_q(tree)),
                path=verdict.path,
                next_token=verdict.next_token,
                next_text=token_text(self._codec, verdict.next_token),
                next_p=info.target_probs.row(last).prob(verdict.next_token),
                ending=ending_of(info),
                emitted=record.emitted,
                emitted_texts=info.texts or tuple(f"{token} " for token in record.emitted),
                seconds=dict(record.seconds),
                fallbacks=record.fallbacks,
            )
        )

    def finish(self, generation: Generation) -> None:
        """Write down how it ended."""
        self._file.end(
            TraceEnd(
                tokens=generation.tokens,
                text=generation.text,
                finish_reason=generation.finish_reason,
                tau=generation.tau if generation.records else None,
                seconds=generation.seconds,
                prefill_seconds=generation.prefill_seconds,
            )
        )


def drafter_names(part: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a drafter's sources: of its own drafters where it lists several, else its own."""
    for value in part.values():
        if isinstance(value, list | tuple) and value and all(isinstance(one, Mapping) and "use" in one for one in value):
            return tuple(str(one["use"]) for one in value)
    return (str(part.get("use", "drafter")),)
