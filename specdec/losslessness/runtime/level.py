"""The runtime proof: trees, cache and features of the strategy's real target, and a ledger of its greedy tokens."""

import time
from dataclasses import dataclass, field

from specdec.compose import build
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.decoding.decoder import Decoder
from specdec.errors import NumericsError
from specdec.interfaces.declarations import Kind
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.losslessness.levels import LevelResult, Progress
from specdec.losslessness.real_prompts import prompts_for, replanned, room
from specdec.losslessness.reference_model import Reference, reference_for
from specdec.losslessness.runtime.near_ties import LEAST_NOISE, NEAR_TIE, Ledger, greedy, teacher_force
from specdec.losslessness.runtime.tree_checks import (
    ROWS,
    WIDTHS,
    Noise,
    TreeDifferences,
    check_trees,
    hidden_apart,
    wanted_features,
    width_noise,
)
from specdec.losslessness.runtime.verdict import judged
from specdec.losslessness.sampled.recording_drafter import Notes, overheard
from specdec.sampling.keyed_noise import mix
from specdec.sampling.logits_warper import LogitsWarper

SLACK = 8.0
"""Times the width noise that a tree, a cache or a feature may differ: the largest of many more numbers, from other shapes."""

ANSWER_TOKENS, BATCH, NOISE_TEXTS = 32, 2, 2
LENGTHS = (6, 11, 18)
"""Tokens of the first batch's prefixes."""

EXACT_TYPES = ("float32", "float64")


@dataclass(slots=True)
class RuntimeProof:
    """The checks of one target. aligned: features that the loop handed to the drafter against a prefill's."""

    resolved: ResolvedSpec
    decoder: Decoder
    reference: Reference
    seed: int
    chat_format: ChatFormat = PLAIN_CHAT
    noise: Noise = field(default_factory=Noise)
    trees: TreeDifferences = field(default_factory=TreeDifferences)
    ledger: Ledger = field(default_factory=Ledger)
    aligned: float = 0.0
    num_aligned: int = 0

    @property
    def judges(self) -> bool:
        """Whether the dtype lets near-ties and faults be told apart."""
        return self.dtype in EXACT_TYPES

    @property
    def dtype(self) -> str:
        return str(self.decoder.target.facts.dtype).removeprefix("torch.")

    @property
    def limit(self) -> float:
        """Of a near-tie."""
        return NEAR_TIE * max(self.noise.logits, LEAST_NOISE)

    def measure_noise(self, text: tuple[int, ...], first: int) -> None:
        """Add one text to the width noise."""
        widths = sorted({*WIDTHS, self._own_width})
        features = wanted_features(self.decoder.target, self.decoder.drafter.declaration.features.layers)
        fitting = [width for width in widths if width <= len(text) - first]
        self.noise.add(width_noise(self.decoder.target, text, first, features, fitting))

    @property
    def _own_width(self) -> int:
        nodes = self.decoder.builder.declaration.max_nodes
        return 1 + min(nodes, ANSWER_TOKENS - 1) if nodes is not None else WIDTHS[-1]

    def check_batch(self, prefixes: list[list[int]], number: int) -> None:
        """One ragged batch of random trees."""
        features = wanted_features(self.decoder.target, self.decoder.drafter.declaration.features.layers)
        try:
            check_trees(self.decoder.target, self.reference, prefixes, features, mix(self.seed, 51, number), self.trees)
        except NumericsError as error:
            self.trees.faults.append(str(error))

    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[tuple[list[int], tuple[int, ...]]]:
        """Greedy answers of the strategy, looked at for aligned features; (prompt, tokens) of each."""
        notes = Notes(every=1 << 30)
        answers = overheard(self.decoder, notes).generate(prompts, max_new_tokens=num_tokens, ignore_eos=True)
        features = self.decoder.drafter.declaration.features
        for answer in answers if features else []:
            text = [*answer.prompt_tokens, *answer.tokens]
            hidden = self.decoder.target.prefill([text], features).scored[0].hidden
            for end in range(len(answer.prompt_tokens), len(text)):
                if (given := notes.hidden.get(tuple(text[:end]))) is not None:
                    self.aligned = max(self.aligned, hidden_apart(given, hidden.rows([end - 1])))
                    self.num_aligned += 1
        return [(list(a.prompt_tokens), a.tokens) for a in answers]

    def enter(self, prompt: list[int], tokens: tuple[int, ...]) -> None:
        """Teacher-force one answer."""
        warper = LogitsWarper(self.decoder.sampling, prompt_length=len(prompt), stop_ids=frozenset())
        self.ledger.enter(prompt, tokens, teacher_force(self.decoder.target, prompt, tokens), warper)

    def faults(self) -> list[str]:
        """Everything that is no rounding, in words."""
        allowed = SLACK * max(self.noise.logits, LEAST_NOISE)
        found = list(self.trees.faults)
        if (noise := self.noise.fault(self.decoder.target.facts.dtype)) is not None:
            found.append(noise)
        for name, value in (
            ("tree nodes and plain forwards over their paths", self.trees.plain),
            ("tree nodes and the same tokens one by one", self.trees.sequential),
            ("the cache after a commit and a recomputation", self.trees.recomputed),
        ):
            if not value <= allowed:
                found.append(f"{name} are {value:.2g} apart; rounding allows {allowed:.2g}")
        allowed = SLACK * max(self.noise.hidden, LEAST_NOISE)
        for name, value in (("features of tree nodes", self.trees.features), ("features handed on", self.aligned)):
            if not value <= allowed:
                found.append(f"{name} are {value:.2g} from a prefill's; rounding allows {allowed:.2g}")
        if beyond := self.ledger.beyond(self.limit):
            worst = max(beyond, key=lambda d: d.gap)
            found.append(
                f"{len(beyond)} tokens are no near-tie: token {worst.place} of text {worst.text} is {worst.gap:.2g} below "
                f"plain decoding's; the limit is {self.limit:.2g}"
            )
        return found


def prove_runtime(
    resolved: ResolvedSpec,
    catalog: Catalog,
    *,
    seconds: float,
    seed: int,
    progress: Progress,
    chat_format: ChatFormat = PLAIN_CHAT,
) -> LevelResult:
    """Check the target in float32 where it has a dtype, and measure the strategy's own dtype beside it.

    Raises SpecdecError where a model cannot be loaded or a part fails.
    """
    began = time.monotonic()
    own = str(getattr(resolved.parts[Kind.TARGET].options, "dtype", None) or "float32")
    rounded = own if own not in EXACT_TYPES else None
    share = 0.7 if rounded else 1.0
    progress(0.0, "loading the model")
    proof = _proof(resolved, catalog, "float32" if own not in EXACT_TYPES else own, seed, chat_format)
    _run(proof, began, share * seconds, lambda done, words: progress(done * share, words))
    beside = None
    if rounded is not None and not proof.faults():
        beside = _proof(resolved, catalog, rounded, seed, chat_format)
        _fill_ledger(beside, began, seconds, lambda done, words: progress(done, f"{rounded}: {words}"))
    return judged(proof, beside, time.monotonic() - began)


def _proof(resolved: ResolvedSpec, catalog: Catalog, dtype: str, seed: int, chat_format: ChatFormat) -> RuntimeProof:
    cold = greedy(resolved.spec.sampling).model_dump(mode="json", exclude_none=True)
    runnable = replanned(resolved, catalog, dtype=dtype, sampling=cold)
    decoder = build(runnable, catalog)
    return RuntimeProof(runnable, decoder, reference_for(runnable, decoder.target, dtype=dtype), seed, chat_format)


def _run(proof: RuntimeProof, began: float, seconds: float, progress: Progress) -> None:
    prompts = prompts_for(proof.decoder.target, chat_format=proof.chat_format)
    size = room(proof.decoder.target, prompts, ANSWER_TOKENS)
    if size < 1:
        return
    for text, tokens in proof.answer(prompts[:NOISE_TEXTS], size):
        proof.measure_noise((*text, *tokens), len(text))
        progress((time.monotonic() - began) / seconds, f"width noise: {proof.noise.logits:.1e}")
    number = 0
    while number == 0 or time.monotonic() - began < 0.5 * seconds:
        proof.check_batch(_prefixes(prompts, number), number)
        number += 1
        progress((time.monotonic() - began) / seconds, f"{proof.trees.trees} trees of {proof.trees.nodes} nodes")
    _fill_ledger(proof, began, seconds, progress)


def _prefixes(prompts: list[list[int]], number: int) -> list[list[int]]:
    """Of a ragged batch; the first batches are short, later ones reach the whole prompts."""
    chosen = [prompts[(ROWS * number + row) % len(prompts)] for row in range(ROWS)]
    return [prefix[: max(2, LENGTHS[row] << number)] for row, prefix in enumerate(chosen) if len(prefix) > 1]


def _fill_ledger(proof: RuntimeProof, began: float, seconds: float, progress: Progress) -> None:
    prompts = prompts_for(proof.decoder.target, chat_format=proof.chat_format)
    size, number = room(proof.decoder.target, prompts, ANSWER_TOKENS), 0
    while size > 0 and number < len(prompts) and (number == 0 or time.monotonic() - began < seconds):
        for prompt, tokens in proof.answer(prompts[number : number + BATCH], size):
            proof.enter(prompt, tokens)
        number += BATCH
        progress(min(1.0, (time.monotonic() - began) / seconds), f"ledger: {proof.ledger.tokens} tokens")
