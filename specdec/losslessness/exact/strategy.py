"""Proofs of whole strategies: their parts on models of a few tokens, by enumeration, as far as the time allows."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.decoding.decoder import Decoder
from specdec.errors import PluginError
from specdec.interfaces.declarations import Beside, Gives, Guarantee, Kind
from specdec.losslessness.exact.budget import RUN_PROMPT, RUN_TOKENS, Group, fitted, groups_for
from specdec.losslessness.exact.checked_rng import NotAFunctionOfItsDraws, OutOfTime
from specdec.losslessness.exact.distance import ExactProof
from specdec.losslessness.exact.enumeration import prove_step
from specdec.losslessness.exact.guards import with_smaller_drafts
from specdec.losslessness.exact.on_tables import OnTables
from specdec.losslessness.exact.place_proofs import LENGTHS, PlaceProver
from specdec.losslessness.exact.runs import prove_run
from specdec.losslessness.exact.shared_noise import NotTheTargetsDraws
from specdec.losslessness.exact.toy_models import stand_in
from specdec.losslessness.report import Instance, StrategyProof
from specdec.sampling.params import SamplingParams

SECONDS = 20.0
"""Time that a proof is cut to, at the nominal rate; on a slower machine it takes longer."""

PATIENCE = (6.0, 30.0)
"""How many times that long, and how many seconds more, it may really take before what is left is given up."""

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
    return _Prover(resolved, OnTables(resolved, catalog), seconds, vocab_size, depth, models, progress).run()


@dataclass(slots=True)
class _Prover:
    """The work on one strategy. deadline: on the clock of time.monotonic."""

    resolved: ResolvedSpec
    tables: OnTables
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
        verifier = self.resolved.parts[Kind.VERIFIER]
        if Beside.FEATURES in verifier.declares.reads_beside:
            left = (f"verifier '{verifier.name}' reads hidden states, which a table does not have",)
            return StrategyProof(self.resolved.spec.name, self.resolved.parts[Kind.DRAFTER].name, None, (), left, (), None, ())
        self.deadline = time.monotonic() + PATIENCE[0] * self.seconds + PATIENCE[1]
        reason = None
        places = self._places()
        try:
            groups = self._groups()
            self.planned = len(LENGTHS) + sum(group.models for group in groups) * len(self.tables.samplings)
            places.run()
            self.covered, self.left_out = list(places.covered), list(places.left_out)
            for group in () if self._refuted else groups:
                if not self._prove(group, self.seconds - places.spent):
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
        tables = tuple(self.resolved.drafters[number].name for number in self.tables.table_parts)
        return StrategyProof(
            self.resolved.spec.name,
            name,
            self.because,
            covered,
            left_out,
            tuple(self.instances),
            reason,
            tables,
            coverage=replace(places.coverage, nodes=max((one.proof.nodes for one in self.instances), default=0)),
        )

    def _places(self) -> PlaceProver:
        def on_proof(instance: Instance) -> bool:
            self._enter(instance)
            return not self._refuted

        return PlaceProver(
            decoder_for=self.tables.table_decoder,
            own=not self.resolved.parts[Kind.DRAFTER].declares.drafts,
            samplings=self.tables.samplings,
            declares=self.resolved.parts[Kind.TREE].declares,
            seconds=self.seconds,
            deadline=self.deadline,
            depth=self.depth,
            vocab_size=self.vocab_size,
            on_proof=on_proof,
        )

    def _enter(self, instance: Instance) -> None:
        self.instances.append(instance)
        if self.progress is not None:
            self.progress(len(self.instances), max(self.planned, len(self.instances)))

    def _groups(self) -> tuple[Group, ...]:
        declares = self.resolved.parts[Kind.DRAFTER].declares
        own_only = declares.gives is not Gives.DISTRIBUTIONS or not declares.drafts
        declared = self.tables.own_vocab
        vocab, own_vocab, loop_vocab = self.vocab_size, None, None
        if own_only and vocab is None and declared is not None and any(map(self.tables.why_not_itself, (4, 2, 12))):
            vocab = declared
        if not own_only:
            own_vocab = declared or vocab or 4
            self.because = self.tables.why_not_itself(own_vocab)
            own_vocab = own_vocab if self.because is None else None
            loop_vocab = own_vocab if self.tables.why_not_itself(2) is not None else vocab or 2
        return groups_for(own_only=own_only, own_vocab=own_vocab, own_loop_vocab=loop_vocab, vocab=vocab, models=self.models)

    def _fitted(self, group: Group, budget: float) -> Group | None:
        seconds = budget * group.share / group.models / len(self.tables.samplings)
        for vocab_size in range(group.vocab_size, group.fewest_tokens - 1, -1):
            smaller, model = replace(group, vocab_size=vocab_size), stand_in(0, vocab_size)
            decoder = self.tables.decoder(model, self.tables.samplings[0], own=group.own)
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

    def _prove(self, wanted: Group, budget: float) -> bool:
        """Whether to go on: nothing has been refuted. budget: nominal seconds of all groups."""
        group = self._fitted(wanted, budget)
        if group is None:
            self.planned -= wanted.models * len(self.tables.samplings)
            return True
        proved = 0
        for number, sampling in self._items(group):
            model = stand_in(number, group.vocab_size)
            whole = self.tables.decoder(model, sampling, own=group.own)
            decoder = with_smaller_drafts(whole, depth=group.depth, nodes=group.nodes)
            prefix = model.prefix if group.steps == 1 else model.prefix[-RUN_PROMPT:]
            try:
                proof = self._proof(decoder, prefix, group.steps)
            except OutOfTime:
                continue
            temperature = sampling.temperature or 0.0
            self._enter(Instance(number, model.name, group.vocab_size, temperature, group.steps, group.own, prefix, proof))
            proved += 1
        done = proved // len(self.tables.samplings)
        missing = group.models - done
        if done:
            self.covered.append(replace(group, models=done).words)
        if missing:
            self.left_out.append(f"{replace(group, models=missing).kind}: it took too long")
        if self._refuted:
            self.left_out.append("what would have come next: it is refuted already")
        return not self._refuted

    def _items(self, group: Group) -> Iterator[tuple[int, SamplingParams]]:
        return ((number, sampling) for number in range(group.models) for sampling in self.tables.samplings)

    def _proof(self, decoder: Decoder, prefix: tuple[int, ...], steps: int) -> ExactProof:
        if steps == 1:
            return prove_step(decoder, prefix, depth=None, deadline=self.deadline)
        return prove_run(decoder, prefix, steps=steps, max_new_tokens=RUN_TOKENS, deadline=self.deadline)
