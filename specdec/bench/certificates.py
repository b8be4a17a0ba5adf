"""The certificates of contenders whose specs set `max_tv`: one for each sampling and dtype that is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdec.config.certificate import Certificate
from specdec.config.certification import check_loaded, required_certificate
from specdec.config.resolved_spec import ResolvedSpec
from specdec.interfaces.parts import Target
from specdec.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Certified:
    """A contender under one sampling, its certificate, and the spec that this is of."""

    contender: str
    dtype: str | None
    temperature: float
    certificate: Certificate
    resolved: ResolvedSpec

    def described(self) -> dict[str, Any]:
        """For the header of a results file."""
        stamp = self.certificate.stamp
        cell = {"dtype": self.dtype, "temperature": self.temperature}
        return {**cell, "sha256": stamp.sha256, "verdict": stamp.verdict, "lossless": stamp.lossless}


def certified(
    resolved_specs: Mapping[str, ResolvedSpec], dtype: str | None, samplings: Sequence[SamplingParams]
) -> list[Certified]:
    """The certificates of those that need one, under each sampling; their own draft truncation stays.

    samplings: those of the benchmark; none: each spec's own. Raises SpecError where a certificate is missing, or does not do.
    """
    found = []
    for name, resolved in resolved_specs.items():
        for sampling in samplings or (resolved.spec.sampling,):
            one = sampling.model_copy(update={"draft": resolved.spec.sampling.draft})
            asked = replace(resolved, spec=resolved.spec.model_copy(update={"sampling": one}))
            certificate = required_certificate(asked)
            if certificate is not None:
                found.append(Certified(name, dtype, float(one.temperature or 0.0), certificate, asked))
    return found


def check_all(certificates: Sequence[Certified], dtype: str | None, target: Target) -> None:
    """Raise SpecError unless what was loaded in this dtype is what was certified."""
    for one in certificates:
        if one.dtype == dtype:
            check_loaded(one.certificate, one.resolved, target)
