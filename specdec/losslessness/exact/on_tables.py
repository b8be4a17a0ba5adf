"""The decoder of a strategy on models whose probabilities are written out in tables."""

from dataclasses import dataclass

from specdec.compose import build
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.config.resolver import check, read
from specdec.decoding.decoder import Decoder
from specdec.drafters.tabular import Tabular, TabularDrafterOptions
from specdec.errors import PluginError, SpecdecError
from specdec.interfaces.declarations import Gives, Kind
from specdec.interfaces.parts import BuildTools
from specdec.losslessness.exact.enumeration import step_size
from specdec.losslessness.exact.guards import blamed
from specdec.losslessness.exact.ranked_table import RankedTable
from specdec.losslessness.exact.toy_models import StandIn, stand_in
from specdec.sampling.params import SamplingParams, TruncationParams

SMALL_VOCAB = 16
"""Vocabulary of a strategy's own target up to which its own drafter is run at that size."""


@dataclass(frozen=True, slots=True)
class OnTables:
    """A strategy, and how its parts are built around a table."""

    resolved: ResolvedSpec
    catalog: Catalog

    @property
    def samplings(self) -> tuple[SamplingParams, ...]:
        """The strategy's own, and temperature 1 before it where that is greedy."""
        own = self.resolved.spec.sampling.model_copy(update={"logit_bias": {}, "min_new_tokens": 0})
        return (own,) if own.temperature else (own.model_copy(update={"temperature": 1.0}), own)

    @property
    def own_vocab(self) -> int | None:
        """The vocabulary of the strategy's own target, if it is small enough to be enumerated."""
        declared: int | None = self.resolved.parts[Kind.TARGET].declares.vocab_size
        return declared if declared is not None and declared <= SMALL_VOCAB else None

    @property
    def table_parts(self) -> list[int]:
        """The drafters, of those that the strategy's own asks, that need hidden states or a model."""
        models = {option for option, part in self.resolved.nested.items() if part.name != "tabular"}
        return [
            number
            for number, part in enumerate(self.resolved.drafters)
            if part.declares.features or any(option.startswith(f"parts.{number}.") for option in models)
        ]

    def why_not_itself(self, vocab_size: int) -> str | None:
        """Why the strategy's own drafter cannot run on a table of so many tokens; None if it can.

        At the size of the strategy's own target it has no excuse, once it is built.
        """
        if self.resolved.parts[Kind.DRAFTER].declares.features:
            return "it reads hidden states, which a table does not have"
        if any(part.name != "tabular" for part in self.resolved.nested.values()):
            return "it needs a model"
        model = stand_in(0, vocab_size)
        try:
            decoder = self.decoder(model, self.samplings[0], own=True)
            if vocab_size != self.own_vocab:
                step_size(decoder, model.prefix, depth=1, probes=1)
        except SpecdecError as error:
            return f"it cannot run on one: {str(error).splitlines()[-1].strip()}"
        return None

    def decoder(self, model: StandIn, sampling: SamplingParams, *, own: bool) -> Decoder:
        """Of the strategy's own drafter, or of the stand-in's. Raises SpecdecError where a part cannot be built on a table."""
        plain_spec = {**self.resolved.plain(), "target": model.target, "sampling": _plain(sampling)}
        if not own:
            plain_spec["drafter"] = model.drafter
        elif tables := self.table_parts:
            parts = plain_spec["drafter"]["parts"]
            kept = [model.drafter if number in tables else part for number, part in enumerate(parts)]
            plain_spec["drafter"] = {**plain_spec["drafter"], "parts": kept}
        try:
            with blamed("a part"):
                return build(check(read(plain_spec, self.catalog), self.catalog), self.catalog)
        except PluginError as error:
            raise PluginError(f"{self.resolved.label}: cannot be proved on a table: {error}") from error

    def table_decoder(self, model: StandIn, sampling: SamplingParams) -> Decoder:
        """Of the stand-in's drafts, given as the strategy's own drafter gives them; one that drafts nothing stays itself."""
        declares = self.resolved.parts[Kind.DRAFTER].declares
        if not declares.drafts:
            return self.decoder(model, sampling, own=True)
        if declares.gives is Gives.DISTRIBUTIONS:
            return self.decoder(model, sampling, own=False)
        takes_tables = Gives.DISTRIBUTIONS in self.resolved.parts[Kind.TREE].declares.needs
        decoder = self.decoder(model, sampling, own=not takes_tables)
        options = TabularDrafterOptions(**{key: value for key, value in model.drafter.items() if key != "use"})
        table = Tabular.build(options, BuildTools(target=decoder.target))
        return decoder.replace(drafter=RankedTable(table))


def _plain(sampling: SamplingParams) -> dict[str, object]:
    plain = sampling.model_dump(mode="json", exclude_none=True)
    if isinstance(sampling.draft, TruncationParams):
        plain["draft"] = sampling.draft.model_dump(mode="json", exclude_none=True)
    return plain
