"""The price of a lossy rule and the certificate of a strategy, as `verify` finds, prints and stores them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdec.cli.terminal import fail
from specdec.compose import build
from specdec.config.certificate import Certificate
from specdec.config.certification import required_certificate, stored_at, unlimited
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.config.resolver import built
from specdec.errors import SpecdecError
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.interfaces.parts import BuildTools, Target
from specdec.losslessness.levels import Level, LevelResult, Progress

if TYPE_CHECKING:
    from specdec.losslessness.price.measured import Price
    from specdec.losslessness.suite import Verification, Wanted

SECONDS = 60.0
"""What measuring gets unless a budget is given."""


@dataclass(frozen=True, slots=True, eq=False)
class PriceFound:
    """Of a lossy rule: its price on the known cases, and the measured one. target: loaded, where a certificate is asked for."""

    known: Mapping[str, float] = field(default_factory=dict)
    measured: "Price | None" = None
    target: Target | None = None

    @property
    def lines(self) -> list[str]:
        """As text, below what was proved."""
        from specdec.losslessness.price.known_cases import worst_words

        known = [f"  {'known cases':16} {worst_words(self.known)}"] if self.known else []
        return known if self.measured is None else [*known, f"  {'measured':16} {self.measured.words}"]

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        known = {"known_cases": dict(self.known)} if self.known else {}
        return known if self.measured is None else {**known, "price": self.measured.plain}


def verify_priced(
    resolved: ResolvedSpec,
    catalog: Catalog,
    wanted: "Wanted",
    progress: Callable[[Level], Progress],
    certificate: Path | None,
) -> tuple["Verification", PriceFound]:
    """The levels that are asked for, and the price of a lossy rule. certificate: where one is to be written."""
    from specdec.losslessness.suite import verify_strategy

    found = verify_strategy(unlimited(resolved), catalog, wanted, progress)
    if found.faults:
        return found, PriceFound()
    asked = certificate is not None or resolved.spec.max_tv is not None
    return found, _found_price(resolved, catalog, wanted, asked, progress(Level.SAMPLED))


def _found_price(resolved: ResolvedSpec, catalog: Catalog, wanted: "Wanted", asked: bool, progress: Progress) -> PriceFound:
    """Measured in decoding on specdec's own prompts where a certificate (`asked`) or the sampled level calls for it."""
    from specdec.losslessness.price.known_cases import known_prices
    from specdec.losslessness.price.measured import measure_price
    from specdec.losslessness.real_prompts import prompts_for

    verifier = resolved.parts[Kind.VERIFIER]
    lossy = verifier.declares.guarantee is Guarantee.LOSSY
    known = known_prices(built(verifier, BuildTools())) if lossy else {}
    if not asked and not (lossy and Level.SAMPLED in wanted.levels):
        return PriceFound(known)
    decoder = build(unlimited(resolved), catalog)
    if not lossy:
        return PriceFound(target=decoder.target)
    seconds = SECONDS if wanted.budget is None else wanted.budget
    prompts = prompts_for(decoder.target, chat_format=wanted.chat_format)
    price = measure_price(decoder, prompts, seconds=seconds, seed=wanted.seed, progress=progress)
    return PriceFound(known, price, decoder.target if asked else None)


def write_certificates(
    resolved: ResolvedSpec, found: PriceFound, results: Sequence[LevelResult], path: Path | None, seed: int, *, json: bool
) -> int:
    """Write what was asked for, and the stored one of a spec with `max_tv`.

    Returns:
        The exit code: 1 for a total variation that may be above `max_tv`, 3 where nothing is known about it.
    """
    from specdec.losslessness.certify import certify

    if found.target is None:
        return 0
    certificate = certify(resolved, found.target, results, price=found.measured, known_cases=found.known, seed=seed)
    if path is not None:
        _write(certificate, path, json=json)
    if resolved.spec.max_tv is None:
        return 0
    if not certificate.says_something:
        return _judged_by_stored(resolved)
    _write(certificate, stored_at(resolved), json=json)
    return _judged(certificate, resolved.spec.max_tv)


def _write(certificate: Certificate, path: Path, *, json: bool) -> None:
    certificate.write(path)
    typer.echo(f"written: {path}", err=json)


def _judged(certificate: Certificate, limit: float) -> int:
    """The exit code by the limit, with a message where it is not kept."""
    if certificate.tv_at_most <= limit:
        return 0
    if certificate.measured is None:
        fail(f"max_tv {limit:g}: {certificate.verdict}")
        return 3
    fail(f"the total variation a token may be up to {certificate.tv_at_most:.3g}, above max_tv {limit:g}")
    return 1


def _judged_by_stored(resolved: ResolvedSpec) -> int:
    """The exit code after levels that say nothing of the limit: an earlier certificate stays, and holds."""
    try:
        required_certificate(resolved)
    except SpecdecError as error:
        fail(f"these levels say nothing of max_tv, so that no certificate is stored; {error}")
        return 3
    return 0
