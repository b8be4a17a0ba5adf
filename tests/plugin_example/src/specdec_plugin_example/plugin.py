"""The hooks: what this package brings to specdec."""

from pathlib import Path

from specdec.authoring import Drafter, hookimpl


@hookimpl
def specdec_drafters() -> list[type[Drafter]]:
    from specdec_plugin_example.follower import Follower

    return [Follower]


@hookimpl
def specdec_library() -> list[Path]:
    return [Path(__file__).parent]
