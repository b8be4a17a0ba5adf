"""Declarative, provably lossless speculative decoding: a spec names a target, a drafter, a tree and a verifier."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.compose import check, load
    from specdec.config.certificate import Certificate
    from specdec.decoding.callbacks import StreamEvent
    from specdec.decoding.decoder import Decoder
    from specdec.decoding.requests import Request
    from specdec.errors import SpecdecError
    from specdec.interfaces.results import Generation, StepRecord
    from specdec.sampling.params import SamplingParams

__all__ = [
    "Certificate",
    "Decoder",
    "Generation",
    "Request",
    "SamplingParams",
    "SpecdecError",
    "StepRecord",
    "StreamEvent",
    "check",
    "load",
]

_HOMES = {
    "Certificate": "specdec.config.certificate",
    "Decoder": "specdec.decoding.decoder",
    "Generation": "specdec.interfaces.results",
    "Request": "specdec.decoding.requests",
    "SamplingParams": "specdec.sampling.params",
    "SpecdecError": "specdec.errors",
    "StepRecord": "specdec.interfaces.results",
    "StreamEvent": "specdec.decoding.callbacks",
    "check": "specdec.compose",
    "load": "specdec.compose",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for, so that `import specdec` loads neither torch nor transformers."""
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("specdec")
    if name not in _HOMES:
        raise AttributeError(f"module 'specdec' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
