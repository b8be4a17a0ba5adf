"""The hooks that a plug-in may implement: they return values and change nothing."""

from pathlib import Path

import pluggy

from specdec.interfaces.parts import Drafter, Target, TreeBuilder, Verifier
from specdec.interfaces.results import StepRecord

PROJECT = "specdec"
"""The name of the entry-point group, and of the pluggy project."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def specdec_drafters() -> list[type[Drafter]]:  # type: ignore[empty-body]
    """Drafter classes to register."""


@hookspec
def specdec_tree_builders() -> list[type[TreeBuilder]]:  # type: ignore[empty-body]
    """Tree-builder classes to register."""


@hookspec
def specdec_verifiers() -> list[type[Verifier]]:  # type: ignore[empty-body]
    """Verifier classes to register."""


@hookspec
def specdec_targets() -> list[type[Target]]:  # type: ignore[empty-body]
    """Target classes to register."""


@hookspec
def specdec_library() -> list[Path]:  # type: ignore[empty-body]
    """Folders that hold `strategies/` or `trees/`, or both."""


@hookspec
def specdec_step(record: StepRecord) -> None:
    """Called with the record of every decode step of every sequence."""
