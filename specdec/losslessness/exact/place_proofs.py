"""Proofs of every place of a strategy's own trees, after prefixes of every length, and in later steps of a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from specdec.decoding.decoder import Decoder
from specdec.interfaces.declarations import BuilderDeclaration
from specdec.losslessness.exact.budget import OUTCOMES_PER_SECOND, RUNS_PER_SECOND
from specdec.losslessness.exact.checked_rng import OutOfTime
from specdec.losslessness.exact.coverage import Coverage
from specdec.losslessness.exact.distance import ExactProof
from specdec.losslessness.exact.enumeration import prove_step, sample_draft, step_size
from specdec.losslessness.exact.guards import with_own_drafts, with_smaller_drafts
from specdec.losslessness.exact.later_steps import LaterSteps
from specdec.losslessness.exact.own_shape import LOOKS, own_siblings, quickest, roomy_model, wanted_places
from specdec.losslessness.exact.place_models import Siblings, place_model, place_prefix
from specdec.losslessness.exact.runs import ROWS, later_step_leaves, prove_later_step
from specdec.losslessness.exact.toy_models import StandIn
from specdec.losslessness.exact.wide_row import prove_wide_row
from specdec.losslessness.report import Instance
from specdec.sampling.params import SamplingParams
from specdec.trees.draft_tree import Draw
from specdec.trees.tree_shape import RankPath

DecoderFor = Callable[[StandIn, SamplingParams], Decoder]
"""The strategy's own builder and verifier around the stand-in's target and the drafts of its table."""

LENGTHS = (2, 130, 1024, 64, *range(3, 64), *range(65, 130), 192, 256, 512)
"""Tokens of prefixes that are tried, the root included: far ones early, so that a small budget tries some of them."""

MANY_IDS = 128
"""Token ids that are drafted after these prefixes."""

STEPS = ((2, True), (3, False), (5, True), (2, False))
"""A later step, and whether those before it accept all drafts, or hardly any."""

PLACES_SHARE, ROWS_SHARE, LENGTHS_SHARE, STEPS_SHARE = 0.5, 0.05, 0.2, 0.15
"""Of the time, at most."""


@dataclass(slots=True)
class PlaceProver:
    """own: whether `decoder_for` runs the strategy's own drafter. depth, vocab_size: the user's limits.

    spent: nominal seconds. deadline: on the clock of time.monotonic. on_proof: told each proof; False ends the work.
    """

    decoder_for: DecoderFor
    own: bool
    samplings: Sequence[SamplingParams]
    declares: BuilderDeclaration
    seconds: float
    deadline: float
    depth: int | None
    vocab_size: int | None
    on_proof: Callable[[Instance], bool]
    lengths: Sequence[int] = LENGTHS
    later_steps: Sequence[tuple[int, bool]] = STEPS
    spent: float = 0.0
    covered: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _wanted: set[tuple[int, int]] = field(default_factory=set)
    _tested: set[tuple[int, int]] = field(default_factory=set)
    _left: list[tuple[RankPath, int]] = field(default_factory=list)
    _lengths: set[int] = field(default_factory=set)
    _token_ids: int = 0
    _possible: int = 0
    _nodes: int = 0
    _largest: int = 0
    _steps: int = 1
    _ended: bool = False

    @property
    def coverage(self) -> Coverage:
        """What was reached so far."""
        wanted, tested, lengths = frozenset(self._wanted), frozenset(self._tested), frozenset(self._lengths)
        tokens = self._token_ids, self._possible
        rows = ROWS if self._steps > 1 else 1
        left = tuple((parent, rank) for parent, rank in self._left if (len(parent) + 1, rank) in tested)
        return Coverage(wanted, tested, lengths, *tokens, self._steps, rows, self._largest, self._nodes, left)

    def run(self) -> None:
        """All of it, as far as the time allows. Raises PluginError for a part that fails, and OutOfTime."""
        shape = self._shape()
        self._wanted |= {(one.depth, rank) for one in shape for rank in range(1, one.count + 1)}
        try:
            self._every_place(shape)
            self._wide_row(shape)
            self._every_length(shape or [Siblings((), 1)])
            self._later_steps(shape or [Siblings((), 1)])
        except OutOfTime:
            self.left_out.append("places, prefixes or later steps: it took too long")

    def _shape(self) -> list[Siblings]:
        """Of the strategy's own trees; empty where nothing is ever drafted."""
        model = roomy_model()
        decoder = self._whole(self.decoder_for(model, self.samplings[0]))
        if not decoder.drafter.declaration.drafts:
            return []
        drafts = [sample_draft(decoder, model.prefix, number) for number in range(LOOKS)]
        self._nodes = max(draft.num_drafted for draft in drafts)
        self._wanted |= wanted_places(self.declares)
        return own_siblings(drafts, self.declares)

    def _whole(self, decoder: Decoder) -> Decoder:
        return with_own_drafts(decoder, depth=self.depth)

    def _every_place(self, shape: Sequence[Siblings]) -> None:
        end = self.spent + PLACES_SHARE * self.seconds
        done = 0
        for siblings in shape:
            if self._ended or (self.depth is not None and siblings.depth > self.depth):
                continue
            counts = range(siblings.count, 0, -1)
            fitting = (replace(siblings, count=count) for count in counts)
            found = next((one for one in fitting if self._fits(one, end)), None)
            reached = 0 if found is None else found.count
            self._left += [(siblings.parent, rank) for rank in range(reached + 1, siblings.count + 1)]
            if found is None:
                continue
            proofs = [proof for proof in self._at(found) if proof is not None]
            self._tested |= {place for proof in proofs for place in proof.tested if place[0] == found.depth}
            self._wanted |= {place for proof in proofs for place in proof.drafted}
            done += len(proofs)
        if done:
            self.covered.append(f"{done} models of the places of its tree, one step")

    def _fits(self, siblings: Siblings, end: float) -> bool:
        """Whether there is time for the models of these siblings; then it is counted as spent."""
        if self.vocab_size is not None and siblings.least_tokens > self.vocab_size:
            return False
        model = self._model(siblings, 0)
        size = step_size(self._whole(self.decoder_for(model, self.samplings[0])), model.prefix, depth=None, probes=2)
        seconds = (size.leaves + 2 * size.drafts) / OUTCOMES_PER_SECOND * (len(self._numbers(siblings)) + 1)
        if self.spent + seconds > end:
            return False
        self.spent += seconds
        return True

    def _numbers(self, siblings: Siblings) -> Sequence[int]:
        """Of the models: where drafts are drawn, one for each sibling, and one more for i.i.d. ones; otherwise two."""
        return range(2) if self._ranked else range(siblings.count + self._undecided(siblings))

    def _undecided(self, siblings: Siblings) -> bool:
        """Whether the last model is one in which every i.i.d. sibling may be rejected."""
        return self.declares.draw is Draw.IID and siblings.count > 1

    @property
    def _ranked(self) -> bool:
        """Whether drafts are picked by rank."""
        return self.declares.draw is Draw.DETERMINISTIC

    def _model(self, siblings: Siblings, number: int) -> StandIn:
        size = self.vocab_size
        used = max(siblings.least_tokens, 3) if size is None else size
        prefix = place_prefix(number + siblings.depth, used)
        undecided = self._undecided(siblings) and number == siblings.count
        return place_model(siblings, number, prefix, vocab_size=size, ranked=self._ranked, undecided=undecided)

    def _at(self, siblings: Siblings) -> Iterator[ExactProof | None]:
        for number in self._numbers(siblings):
            for place, sampling in enumerate(self.samplings):
                if self._ended or (place and number):
                    continue
                model = self._model(siblings, number)
                decoder = self._whole(self.decoder_for(model, sampling))
                proof = prove_step(decoder, model.prefix, depth=None, deadline=self.deadline)
                yield self._report(model, number, sampling, 1, proof)

    def _report(
        self, model: StandIn, number: int, sampling: SamplingParams, steps: int, proof: ExactProof
    ) -> ExactProof | None:
        """The proof, where it is of a step above temperature 0, and everything is covered that was enumerated."""
        temperature = sampling.temperature or 0.0
        instance = Instance(number, model.name, model.vocab_size, temperature, steps, self.own, model.prefix, proof, led=True)
        self._ended = not self.on_proof(instance)
        self._largest = max(self._largest, proof.nodes)
        return proof if temperature else None

    def _wide_row(self, shape: Sequence[Siblings]) -> None:
        if self._ended or not shape or self.vocab_size is not None:
            return
        wide = prove_wide_row(self._whole_decoder, seconds=ROWS_SHARE * self.seconds, deadline=self.deadline)
        if wide is not None:
            self.spent += wide.seconds
            self._possible = wide.possible
            self._report(wide.model, 0, self.samplings[0], 1, wide.proof)
            self.covered.append(f"1 model of {wide.model.vocab_size} tokens that are possible at once, one child of the root")

    def _every_length(self, shape: Sequence[Siblings]) -> None:
        siblings = quickest(shape)
        size = MANY_IDS if self.vocab_size is None else self.vocab_size
        if siblings.least_tokens > size:
            return
        end = self.spent + LENGTHS_SHARE * self.seconds
        for number, length in enumerate(self.lengths):
            prefix = place_prefix(length, size, length)
            model = place_model(siblings, number, prefix, vocab_size=size, ranked=self._ranked)
            whole = self._whole(self.decoder_for(model, self.samplings[0]))
            decoder = with_smaller_drafts(whole, depth=siblings.depth, nodes=None)
            if number == 0:
                sized = step_size(decoder, model.prefix, depth=None, probes=4)
                seconds = (sized.leaves + 2 * sized.drafts) / OUTCOMES_PER_SECOND
            self.spent += seconds
            if self._ended or self.spent > end:
                break
            proof = prove_step(decoder, model.prefix, depth=None, deadline=self.deadline)
            self._report(model, number, self.samplings[0], 1, proof)
            self._lengths.add(length)
        if len(self._lengths) > 1:
            self._token_ids = min(size, siblings.least_tokens * len(self._lengths))
            self.covered.append(f"{len(self._lengths)} models of {size} tokens, a prefix of another length each, one step")

    def _later_steps(self, shape: Sequence[Siblings]) -> None:
        """The first children of every depth in the second step, those of the root and of the last depth also later."""
        end = self.spent + STEPS_SHARE * self.seconds
        depths = {one.depth: one for one in reversed(shape) if not any(one.parent)}
        models = LaterSteps(self._whole_decoder, self.vocab_size, self._ranked)
        done = 0
        for number, (step, agree) in enumerate(self.later_steps):
            ends = {depths[min(depths)], depths[max(depths)]}
            reached = [self._first_fitting(models.after_steps(one, step, agree, number), step, end) for one in sorted(ends)]
            if all(reached):
                self._steps = max(self._steps, step)
            done += sum(reached)
        inner = [depths[depth] for depth in sorted(depths)][1:-1]
        seconds = [(number, agree) for number, (step, agree) in enumerate(self.later_steps) if step == 2]
        for number, agree in seconds:
            done += sum(self._first_fitting(models.after_steps(one, 2, agree, number), 2, end) for one in inner)
        if done:
            self.covered.append(f"{done} models of a later step (2 to {self._steps}), {ROWS} sequences in the batch")
        if self.later_steps and self._first_fitting(models.after_a_stop(depths[min(depths)]), 1, end):
            self.covered.append(f"1 model of a prompt that ends in a stop token, {ROWS} sequences in the batch")

    def _whole_decoder(self, model: StandIn) -> Decoder:
        return self._whole(self.decoder_for(model, self.samplings[0]))

    def _first_fitting(self, models: Iterator[StandIn], step: int, end: float) -> bool:
        """Whether there was time for one of the models."""
        for model in () if self._ended else models:
            decoder = self._whole_decoder(model)
            seconds = later_step_leaves(decoder, model.prefix, steps=step) / RUNS_PER_SECOND
            if seconds <= (end - self.spent) / 4:
                self.spent += seconds
                proof = prove_later_step(decoder, model.prefix, steps=step, deadline=self.deadline)
                self._report(model, 0, self.samplings[0], step, proof)
                return True
        return False
