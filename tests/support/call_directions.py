"""Records which functions of the package call functions of a higher tier, by the tiers that pyproject.toml lists."""

import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'specdec'}/"

HANDED_DOWN = {
    "verifiers/* -> losslessness/exact/guards.py:WatchedProbs.*": "the target's rows, watched",
    "files/validation.py:* -> *": "pydantic calls the validators of the model that it is given",
    "* -> cli/verify.py:_progress.*": "the command's progress bar",
    "bench/run.py:* -> cli/bench.py:_Lines.__call__": "the command's progress lines",
    "decoding/decoder.py:* -> bench/contender.py:run_task.<locals>.<lambda>": "a step callback",
    "decoding/* -> losslessness/exact/ranked_table.py:*": "the stand-in drafter of a proof, a part of the decoder",
    "decoding/drafting.py:* -> losslessness/exact/guards.py:_budgeted.*": "a tree builder inside its guard",
    "decoding/sequence.py:open_sequences -> losslessness/exact/*.<lambda>": "`rng_for`: what makes a request's two streams",
    "heads/layers.py:Attention.forward -> training/unroll.py:_Growing.*": "the attention over the steps of an unrolled head",
    "sampling/distribution.py:TokenDist.choose -> losslessness/exact/checked_rng.py:*": "the streams that enumerate draws",
    "sampling/enumeration.py:outcomes -> losslessness/exact/*": "what is enumerated, and the hash of its outcomes",
}
"""Calls that go up, as patterns of caller -> callee: with each, what was handed down."""


@cache
def tiers() -> dict[str, int]:
    """By name at the top of the package, its tier; 0 is the highest."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {name: tier for tier, layer in enumerate(layers) for name in re.findall(r"specdec\.(\w+)", layer)}


@cache
def place(code: CodeType) -> str | None:
    """Where a function stands, as folder/module.py:name; None outside of the package and for a module that is imported."""
    name = code.co_qualname
    if not code.co_filename.startswith(PACKAGE) or name == "<module>":
        return None
    return f"{code.co_filename.removeprefix(PACKAGE)}:{name}"


@cache
def tier(code: CodeType) -> int | None:
    where = place(code)
    return None if where is None else tiers().get(re.split(r"[/.]", where)[0])


class Upward:
    """The calls that went up, each as caller -> callee."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], int] = {}
        self.seen = 0

    @property
    def unexplained(self) -> list[str]:
        """Those that nothing handed down explains."""
        calls = [f"{caller} -> {called}" for caller, called in sorted(self.calls)]
        return [call for call in calls if not any(fnmatchcase(call, pattern) for pattern in HANDED_DOWN)]

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (called := tier(frame.f_code)) is None:
            return
        caller = frame.f_back
        while caller is not None and tier(caller.f_code) is None:
            caller = caller.f_back
        if caller is None:
            return
        self.seen += 1
        if called < (tier(caller.f_code) or 0):
            pair = (str(place(caller.f_code)), str(place(frame.f_code)))
            self.calls[pair] = self.calls.get(pair, 0) + 1


@contextmanager
def recorded() -> Iterator[Upward]:
    upward = Upward()
    before = sys.getprofile()
    threading.setprofile(upward)
    sys.setprofile(upward)
    try:
        yield upward
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
