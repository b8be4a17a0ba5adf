"""All levels of a verification, one after another, each with its share of the time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.errors import SpecdecError
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.losslessness.bitwise.level import prove_bitwise
from specdec.losslessness.exact.level import prove_exact
from specdec.losslessness.levels import SECONDS, Level, LevelResult, Progress
from specdec.losslessness.runtime.level import prove_runtime
from specdec.losslessness.sampled.level import prove_sampled


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. budget: seconds, over all levels; None: SECONDS. vocab_size, depth, models: of the exact level.

    chat_format: how the prompts of the other levels are put to the chat template.
    """

    levels: Sequence[Level]
    budget: float | None = None
    seed: int = 0
    vocab_size: int | None = None
    depth: int | None = None
    models: int | None = None
    chat_format: ChatFormat = PLAIN_CHAT

    def seconds(self, level: Level) -> float:
        """Of one level."""
        if self.budget is None:
            return SECONDS[level]
        return self.budget * SECONDS[level] / sum(SECONDS[other] for other in self.levels)


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of the levels that ran, and by level the fault of each that could not."""

    results: tuple[LevelResult, ...]
    faults: Mapping[Level, SpecdecError] = field(default_factory=dict)

    @property
    def fault_words(self) -> dict[str, str]:
        """By the levels that it kept from running, each fault once."""
        levels: dict[str, list[str]] = {}
        for level, fault in self.faults.items():
            levels.setdefault(str(fault), []).append(level.value)
        return {", ".join(names): words for words, names in levels.items()}


def verify_strategy(
    resolved: ResolvedSpec, catalog: Catalog, wanted: Wanted, progress: Callable[[Level], Progress]
) -> Verification:
    """Run the levels; a part that fails in one of them does not keep the others from running."""
    results, faults = list[LevelResult](), dict[Level, SpecdecError]()
    for level in wanted.levels:
        try:
            results.append(_run(level, resolved, catalog, wanted, progress(level)))
        except SpecdecError as error:
            faults[level] = error
    return Verification(tuple(results), faults)


def _run(level: Level, resolved: ResolvedSpec, catalog: Catalog, wanted: Wanted, progress: Progress) -> LevelResult:
    seconds, seed = wanted.seconds(level), wanted.seed
    if level is Level.EXACT:
        return prove_exact(
            resolved,
            catalog,
            seconds=seconds,
            vocab_size=wanted.vocab_size,
            depth=wanted.depth,
            models=wanted.models,
            progress=progress,
        )
    prove = {Level.BITWISE: prove_bitwise, Level.RUNTIME: prove_runtime, Level.SAMPLED: prove_sampled}[level]
    return prove(resolved, catalog, seconds=seconds, seed=seed, progress=progress, chat_format=wanted.chat_format)
