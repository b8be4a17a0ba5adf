"""The sampled proof: a real model end to end, with a stated false-alarm rate and the smallest fault that it could see."""

import time
from dataclasses import dataclass, field, replace

from specdec.compose import build
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.interfaces.declarations import Gives, Guarantee, Kind
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.losslessness.levels import LevelResult, Progress
from specdec.losslessness.real_prompts import prompts_for, replanned, room
from specdec.losslessness.reference_model import reference_for
from specdec.losslessness.sampled.cached_rows import RowRuns
from specdec.losslessness.sampled.evidence import Evidence
from specdec.losslessness.sampled.joint_distribution import BATCH as JOINT_BATCH
from specdec.losslessness.sampled.joint_distribution import WIDTH, JointRuns, joint_runs
from specdec.losslessness.sampled.long_runs import LongRuns
from specdec.losslessness.sampled.statistics import FALSE_ALARM
from specdec.losslessness.sampled.verdict import judged

LEAST_PREFIXES = 200
"""Real prefixes whose rows are memoised, at least."""

LONG_SHARE, JOINT_SHARE = 0.3, 0.08
"""Of the time; the rest goes to the memoised rows. Joint distributions take their share once for rows, and once for runs."""

TEXT_TOKENS, TEXTS = 32, 8
"""Of one batch of real answers."""

MOST_TESTS = 12
"""More than a run makes: what an e-process has to stand up to before a run is cut short."""


@dataclass(slots=True)
class SampledProof:
    """The three runs of one strategy, within a time that includes loading the models."""

    resolved: ResolvedSpec
    seconds: float
    seed: int
    progress: Progress
    long: LongRuns
    rows: RowRuns | None = None
    joint: list[JointRuns] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> LevelResult:
        """Long runs until enough prefixes are there and their time is over, then joint distributions, then memoised rows."""
        size = room(self.long.decoder.target, self.long.prompts, TEXT_TOKENS)
        while size > 1 and not self._cut_short(self.long.evidence):
            enough = len(self.long.rows) >= LEAST_PREFIXES
            if self._share >= (LONG_SHARE if enough else 0.9):
                break
            self.long.run(batch=TEXTS, num_tokens=size)
            self.progress(self._share, f"long runs: {self.long.evidence.tokens} tokens")
        if self.long.rows and self.takes_tables and not self._cut_short(self.long.evidence):
            self._joint()
            self._memoised()
        return judged(self)

    @property
    def takes_tables(self) -> bool:
        """Whether the builder takes distributions that a table of q gives, and the rule reads nothing but p."""
        declares = self.resolved.parts[Kind.TREE].declares
        if self.resolved.parts[Kind.VERIFIER].declares.reads_beside:
            return False
        return Gives.DISTRIBUTIONS in declares.needs or not self.resolved.parts[Kind.DRAFTER].declares.drafts

    @property
    def evidence(self) -> list[Evidence]:
        """Of all runs so far."""
        return [self.long.evidence, *([] if self.rows is None else [self.rows.evidence])]

    @property
    def _share(self) -> float:
        return (time.monotonic() - self._began) / self.seconds

    def _cut_short(self, evidence: Evidence) -> bool:
        """Bets may stop the run at any time; a token that cannot be ends it too. What claims nothing is measured to the end."""
        if self.resolved.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSY:
            return False
        return evidence.impossible > 0 or evidence.wealth.p_value < FALSE_ALARM / MOST_TESTS

    def _joint(self) -> None:
        if self.long.decoder.target.facts.vocab_size < WIDTH:
            return
        until = self._share + JOINT_SHARE
        prefixes = [tuple(prompt) for prompt in self.long.prompts if len(prompt) > 1]
        for number, prefix in enumerate(sorted(prefixes, key=len)[:2]):
            if self._share < until:
                made = joint_runs(self.resolved, self.long.decoder, self.long.reference, prefix, self.seed + number)
                self.joint.append(made)
                self.progress(self._share, f"joint distribution after prefix {number + 1}")
        until = self._share + JOINT_SHARE
        while self.joint and self._share < until:
            for made in self.joint:
                made.run()
            self.progress(self._share, f"joint distributions: {len(self.joint)} prefixes")

    def _memoised(self) -> None:
        self.rows = RowRuns(self.resolved, self.long.rows, self.seed)
        for made in self.joint:
            if made.counts.sum() >= JOINT_BATCH:
                self.rows.evidence.joint = self.rows.evidence.joint + made.chi
        while not self._cut_short(self.rows.evidence):
            self.rows.run()
            self.progress(min(1.0, self._share), f"memoised rows: {self.rows.evidence.tokens} tokens")
            if self._share >= 1:
                break


def prove_sampled(
    resolved: ResolvedSpec,
    catalog: Catalog,
    *,
    seconds: float,
    seed: int,
    progress: Progress,
    chat_format: ChatFormat = PLAIN_CHAT,
) -> LevelResult:
    """Hold the tokens of the strategy against one plain float32 forward of its target.

    The strategy runs in float32 where its target can, and at temperature 1 where it is greedy (greedy decoding is the runtime
    level's). Raises SpecdecError where a model cannot be loaded or a part fails.
    """
    began = time.monotonic()
    progress(0.0, "loading the model")
    hot = warm(resolved, catalog)
    decoder = build(hot, catalog)
    reference = reference_for(hot, decoder.target)
    prompts = prompts_for(decoder.target, chat_format=chat_format)
    proof = SampledProof(hot, seconds, seed, progress, LongRuns(decoder, reference, prompts, seed))
    proof._began = began
    return replace(proof.run(), seconds=time.monotonic() - began)


def warm(resolved: ResolvedSpec, catalog: Catalog) -> ResolvedSpec:
    """The spec at a temperature above 0, in float32 where its target has a dtype."""
    sampling = dict(resolved.plain()["sampling"])
    return replanned(
        resolved, catalog, dtype="float32", sampling={**sampling, "temperature": sampling.get("temperature") or 1.0}
    )
