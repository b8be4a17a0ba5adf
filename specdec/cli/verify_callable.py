"""`verify --callable` and `verify --peer`: decoders of other engines, put to the test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.cli.output_files import claim_outputs
from specdec.cli.verify_options import WantedLevel
from specdec.compose import resolve
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.errors import SpecError
from specdec.interfaces.declarations import Kind
from specdec.interfaces.text_codec import ChatFormat
from specdec.losslessness.levels import SECONDS, Level, Progress

if TYPE_CHECKING:
    from specdec.losslessness.external.callables import Answering
    from specdec.losslessness.suite import Verification


@dataclass(frozen=True, slots=True)
class Foreign:
    """A decoder that is no strategy. function: its dotted name; peer: an engine's name, and the draft model for it."""

    function: str | None
    peer: str | None
    assistant: str | None

    @property
    def name(self) -> str | None:
        """As it is reported; None where a strategy is meant."""
        return self.function or self.peer


def one_named(strategy: str | None, foreign: Foreign, certificate: Path | None) -> Foreign:
    """The foreign decoder; a certificate's file is kept for this command.

    Raises SpecError where not exactly one decoder is named, or a draft model for none, or a certificate of no strategy.
    """
    if sum(named is not None for named in (strategy, foreign.function, foreign.peer)) != 1:
        raise SpecError("verify: name a strategy, or a function with --callable, or an engine with --peer; one of them")
    if foreign.assistant is not None and foreign.peer is None:
        raise SpecError("--assistant: is the draft model of an engine named with --peer")
    if strategy is None and certificate is not None:
        raise SpecError("--certificate: is for strategies; of another decoder there is no resolved spec to certify")
    if certificate is not None:
        claim_outputs(certificate)
    return foreign


def verify_foreign(
    foreign: Foreign,
    resolved: ResolvedSpec,
    catalog: Catalog,
    level: WantedLevel,
    budget: float | None,
    seed: int,
    chat: ChatFormat,
    progress: Callable[[Level], Progress],
) -> "Verification":
    """The level that the temperature calls for: near-ties at 0, the sampled one above."""
    from specdec.losslessness.external.level import prove_callable
    from specdec.losslessness.suite import Verification

    fitting = _fitting(resolved, level, "--callable" if foreign.peer is None else "--peer")
    seconds = SECONDS[fitting] if budget is None else budget
    prove = partial(prove_callable, _answering(foreign, resolved, catalog), resolved, catalog, seed=seed, chat_format=chat)
    result = prove(seconds=seconds, progress=progress(fitting))
    return Verification((result,))


def _fitting(resolved: ResolvedSpec, level: WantedLevel, option: str) -> Level:
    """Raises SpecError where another level is asked for."""
    fitting = Level.SAMPLED if resolved.spec.sampling.temperature else Level.RUNTIME
    if level in (WantedLevel.EXACT, WantedLevel.ALL) or level.value == fitting.value:
        return fitting
    wanted = (
        "--set sampling.temperature=1, or another above 0" if level is WantedLevel.SAMPLED else "--set sampling.temperature=0"
    )
    possible = level in (WantedLevel.SAMPLED, WantedLevel.RUNTIME)
    hint = f"it needs {wanted}" if possible else "it looks into the decoder"
    raise SpecError(f"{option}: level {level.value} cannot be run: {hint}; {fitting.value} would work")


def _answering(foreign: Foreign, resolved: ResolvedSpec, catalog: Catalog) -> "Answering":
    from specdec.losslessness.external.callables import find_callable

    if foreign.function is not None:
        found: Answering = find_callable(foreign.function)
        return found
    from specdec.integrations.peers import Peer, peer_callable

    assistant = None
    if foreign.assistant is not None:
        settings = ["target.dtype=float32"]
        assistant = resolve("plain", catalog, settings=settings, target=foreign.assistant).parts[Kind.TARGET]
    return peer_callable(Peer(foreign.peer or "", assistant), resolved, catalog)
