"""Proofs of whole strategies: their parts on models of a few tokens, by enumeration, as far as the time allows."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from specdec.compose import build
from specdec.config.resolved_spec import Catalog, ResolvedSpec
from specdec.config.resolver import check, read
from specdec.decoding.decoder import Decoder
from specdec.errors import PluginError, SpecdecError
from specdec.interfaces.declarations import Gives, Guarantee
from specdec.losslessness.exact.budget import RUN_PROMPT, RUN_TOKENS, Group, fitted, groups_for
from specdec.losslessness.exact.checked_rng import NotAFunctionOfItsDraws, OutOfTime
from specdec.losslessness.exact.distance import ExactProof
from specdec.losslessness.exact.enumeration import prove_run, prove_step, step_size
from specdec.losslessness.exact.guards import blamed, with_smaller_drafts
from specdec.losslessness.exact.shared_noise import NotTheTargetsDraws
from specdec.losslessness.exact.toy_models import StandIn, stand_in
from specdec.losslessness.report import Instance, StrategyProof
from specdec.plugins.registry import Kind
from specdec.sampling.params import SamplingParams, TruncationParams

SECONDS = 20.0
"""Time that a proof is cut to, at the nominal rate; on a slower machine it takes longer."""

PATIENCE = (3.0, 15.0)
"""How many times that long, and how many seconds more, it may really take before what is left is given up."""

SMALL_VOCAB = 16
"""Vocabulary of a strategy's own target up to which its own drafter is run at that size."""

Progress = Callable[[int, int], None]
"""(proofs done, proofs planned)."""


def prove_strategy(
    resolved: ResolvedSpec,
    catalog: Catalog,
    *,
    seconds: float = SECONDS,
    vocab_size: int | None = None,
    depth: int | None = None,
    models: int | None = None,
    progress: Progress | None = None,
) -> StrategyProof:
    """Enumerate steps of the strategy on stand-in models, as many and as large as fit into `seconds`.

    A drafter that gives candidates runs itself. One that gives distributions runs itself where it can be built on a table, and
    is replaced by a table beside that, since verification is to be exact for any q. Temperature 0 is proved beside 1.
    Penalties and truncation stay; a token bias and a minimum length, which name real tokens or count steps, are left out.
    vocab_size, depth, models: of all stand-ins, levels of their drafts, and how many; None: as the time allows.
    Raises PluginError for a part that fails.
    """
    return _Prover(resolved, catalog, seconds, vocab_size, depth, models, progress).run()


@dataclass(slots=True)
class _Prover:
    """The work on one strategy. deadline: on the clock of time.monotonic."""

    resolved: ResolvedSpec
    catalog: Catalog
    seconds: float
    vocab_size: int | None
    depth: int | None
    models: int | None
    progress: Progress | None
    deadline: float = 0.0
    planned: int = 0
    because: str | None = None
    instances: list[Instance] = field(default_factory=list)
    covered: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def run(self) -> StrategyProof:
        self.deadline = time.monotonic() + PATIENCE[0] * self.seconds + PATIENCE[1]
        reason = None
        try:
            groups = self._groups()
            self.planned = sum(group.models for group in groups) * len(self._samplings())
            for group in groups:
                if not self._prove(group):
                    break
        except NotAFunctionOfItsDraws as error:
            reason = f"not a function of its random draws: {error}"
        except NotTheTargetsDraws as error:
            reason = str(error)
        except PluginError:
            if not self._refuted:
                raise
        name = self.resolved.parts[Kind.DRAFTER].name
        covered, left_out = tuple(self.covered), tuple(self.left_out)
        tables = tuple(self.resolved.drafters[number].name for number in self._table_parts)
        return StrategyProof(
            self.resolved.spec.name, name, self.because, covered, left_out, tuple(self.instances), reason, tables
        )

    def _groups(self) -> tuple[Group, ...]:
        declares = self.resolved.parts[Kind.DRAFTER].declares
        own_only = declares.gives is not Gives.DISTRIBUTIONS or not declares.drafts
        declared = self._own_vocab
        vocab, own_vocab, loop_vocab = self.vocab_size, None, None
        if own_only and vocab is None and declared is not None and any(map(self._why_not_itself, (4, 2, 12))):
            vocab = declared
        if not own_only:
            own_vocab = declared or vocab or 4
            self.because = self._why_not_itself(own_vocab)
            own_vocab = own_vocab if self.because is None else None
            loop_vocab = own_vocab if self._why_not_itself(2) is not None else vocab or 2
        return groups_for(own_only=own_only, own_vocab=own_vocab, own_loop_vocab=loop_vocab, vocab=vocab, models=self.models)

    @property
    def _own_vocab(self) -> int | None:
        """The vocabulary of the strategy's own target, if it is small enough to be enumerated."""
        declared: int | None = self.resolved.parts[Kind.TARGET].declares.vocab_size
        return declared if declared is not None and declared <= SMALL_VOCAB else None

    @property
    def _table_parts(self) -> list[int]:
        """The drafters, of those that the strategy's own asks, that need hidden states or a model."""
        models = {option for option, part in self.resolved.nested.items() if part.name != "tabular"}
        return [
            number
            for number, part in enumerate(self.resolved.drafters)
            if part.declares.features or any(option.startswith(f"parts.{number}.") for option in models)
        ]

    def _why_not_itself(self, vocab_size: int) -> str | None:
        """Why the strategy's own drafter cannot run on a table of so many tokens; None if it can.

        At the size of the strategy's own target it has no excuse, once it is built.
        """
        if self.resolved.parts[Kind.DRAFTER].declares.features:
            return "it reads hidden states, which a table does not have"
        if any(part.name != "tabular" for part in self.resolved.nested.values()):
            return "it needs a model"
        model = stand_in(0, vocab_size)
        try:
            decoder = self._decoder(model, self._samplings()[0], own=True)
            if vocab_size != self._own_vocab:
                step_size(decoder, model.prefix, depth=1, probes=1)
        except SpecdecError as error:
            return f"it cannot run on one: {str(error).splitlines()[-1].strip()}"
        return None

    def _samplings(self) -> tuple[SamplingParams, ...]:
        own = self.resolved.spec.sampling.model_copy(update={"logit_bias": {}, "min_new_tokens": 0})
        return (own,) if own.temperature else (own.model_copy(update={"temperature": 1.0}), own)

    def _fitted(self, group: Group) -> Group | None:
        seconds = self.seconds * group.share / group.models / len(self._samplings())
        for vocab_size in range(group.vocab_size, group.fewest_tokens - 1, -1):
            smaller, model = replace(group, vocab_size=vocab_size), stand_in(0, vocab_size)
            decoder = self._decoder(model, self._samplings()[0], group.own)
            found = fitted(smaller, decoder, model, seconds=seconds, depth=self.depth)
            if found is not None:
                return found
        self.left_out.append(f"{group.kind}: too many outcomes for {self.seconds:g} s")
        return None

    @property
    def _refuted(self) -> bool:
        """Whether a strategy that claims to be lossless is not."""
        claims = self.resolved.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
        return claims and any(not instance.proof.holds for instance in self.instances)

    def _prove(self, wanted: Group) -> bool:
        """Whether to go on: nothing has been refuted."""
        group = self._fitted(wanted)
        if group is None:
            self.planned -= wanted.models * len(self._samplings())
            return True
        proved = 0
        for number, sampling in self._items(group):
            model = stand_in(number, group.vocab_size)
            decoder = with_smaller_drafts(self._decoder(model, sampling, group.own), depth=group.depth, nodes=group.nodes)
            prefix = model.prefix if group.steps == 1 else model.prefix[-RUN_PROMPT:]
            try:
                proof = self._proof(decoder, prefix, group.steps)
            except OutOfTime:
                continue
            temperature = sampling.temperature or 0.0
            self.instances.append(
                Instance(number, model.name, group.vocab_size, temperature, group.steps, group.own, prefix, proof)
            )
            proved += 1
            if self.progress is not None:
                self.progress(len(self.instances), self.planned)
        done = proved // len(self._samplings())
        missing = group.models - done
        if done:
            self.covered.append(replace(group, models=done).words)
        if missing:
            self.left_out.append(f"{replace(group, models=missing).kind}: it took too long")
        if self._refuted:
            self.left_out.append("what would have come next: it is refuted already")
        return not self._refuted

    def _items(self, group: Group) -> Iterator[tuple[int, SamplingParams]]:
        return ((number, sampling) for number in range(group.models) for sampling in self._samplings())

    def _proof(self, decoder: Decoder, prefix: tuple[int, ...], steps: int) -> ExactProof:
        if steps == 1:
            return prove_step(decoder, prefix, depth=None, deadline=self.deadline)
        return prove_run(decoder, prefix, steps=steps, max_new_tokens=RUN_TOKENS, deadline=self.deadline)

    def _decoder(self, model: StandIn, sampling: SamplingParams, own: bool) -> Decoder:
        """Raises SpecdecError where the parts cannot be built on a table."""
        plain_spec = {**self.resolved.plain(), "target": model.target, "sampling": _plain(sampling)}
        if not own:
            plain_spec["drafter"] = model.drafter
        elif tables := self._table_parts:
            parts = plain_spec["drafter"]["parts"]
            kept = [model.drafter if number in tables else part for number, part in enumerate(parts)]
            plain_spec["drafter"] = {**plain_spec["drafter"], "parts": kept}
        try:
            with blamed("a part"):
                return build(check(read(plain_spec, self.catalog), self.catalog), self.catalog)
        except PluginError as error:
            raise PluginError(f"{self.resolved.label}: cannot be proved on a table: {error}") from error


def _plain(sampling: SamplingParams) -> dict[str, object]:
    plain = sampling.model_dump(mode="json", exclude_none=True)
    if isinstance(sampling.draft, TruncationParams):
        plain["draft"] = sampling.draft.model_dump(mode="json", exclude_none=True)
    return plain
