"""Exact checks for authors of parts: each takes seconds, and says what is wrong, where, and what would be right.

Also what a decoder of another engine hands back for `verify --callable`, beside its ids.
"""

from specdec.losslessness.external.instrumented import AcceptanceRule, DraftedStep, InstrumentedAnswer
from specdec.testing.builder import check_builder
from specdec.testing.drafter import check_drafter
from specdec.testing.report import Checked, CheckFailed
from specdec.testing.target import check_target
from specdec.testing.verifier import check_verifier

__all__ = [
    "AcceptanceRule",
    "CheckFailed",
    "Checked",
    "DraftedStep",
    "InstrumentedAnswer",
    "check_builder",
    "check_drafter",
    "check_target",
    "check_verifier",
]
