"""Decoders of others: any function from a prompt to ids, found by its name and guarded at every call."""

import importlib
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

from specdec.errors import PluginError, SpecError
from specdec.files.paths import working_folder
from specdec.losslessness.external.instrumented import InstrumentedAnswer, Steps, checked_logprobs, checked_steps

Answering = Callable[[list[int], int, int], Iterable[int] | InstrumentedAnswer]
"""(prompt ids, number of new tokens, seed) -> the new ids, fewer where the text ended; or these with their steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a callable returned. steps, logprobs: None where it did not give them."""

    tokens: tuple[int, ...]
    steps: Steps | None = None
    logprobs: tuple[float, ...] | None = None


def find_callable(name: str, option: str = "--callable", kind: str = "a function (prompt ids, n, seed) -> ids") -> Any:
    """The function of 'module:function'; modules of the working folder are found too. option, kind: for the SpecError."""
    module_name, colon, function = name.partition(":")
    if not (module_name and colon and function):
        raise SpecError(f"{option}: got {name!r}; expected module:function, such as my_package.decoding:answer")
    here = str(working_folder())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise SpecError(f"{option}: module '{module_name}' cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        if added:
            sys.path.remove(here)
    for part in function.split("."):
        if (found := getattr(found, part, None)) is None:
            raise SpecError(f"{option}: module '{module_name}' has no '{function}'")
    if not callable(found):
        raise SpecError(f"{option}: '{name}' is {type(found).__name__}, not {kind}")
    return found


def ask(answering: Answering, prompt: Sequence[int], count: int, seed: int, vocab_size: int) -> Asked:
    """The new ids and steps, looked at. Raises PluginError for a function that fails, or that returns anything else."""
    name = getattr(answering, "__qualname__", type(answering).__name__)
    try:
        with redirect_stdout(sys.stderr):
            given: Any = answering(list(prompt), count, seed)
            answer: Any = given.tokens if isinstance(given, InstrumentedAnswer) else given
            ids = [_plain(token) for token in (answer.tolist() if hasattr(answer, "tolist") else answer)]
    except (Exception, SystemExit) as error:
        raise PluginError(f"callable '{name}' fails: {type(error).__name__}: {error}") from error
    _check_ids(ids, prompt, count, vocab_size, name)
    if not isinstance(given, InstrumentedAnswer):
        return Asked(tuple(ids))
    return Asked(tuple(ids), checked_steps(given, ids, vocab_size, name), checked_logprobs(given, ids, name))


def _check_ids(ids: list[Any], prompt: Sequence[int], count: int, vocab_size: int, name: str) -> None:
    """Raise PluginError for what is no answer."""
    strangers = [token for token in ids if type(token) is not int]
    if strangers:
        kind = type(strangers[0]).__name__
        raise PluginError(f"callable '{name}' returned {strangers[0]!r}, of type {kind}; expected whole numbers, token ids")
    strangers = [token for token in ids if not 0 <= token < vocab_size]
    if strangers:
        raise PluginError(f"callable '{name}' returned {strangers[0]!r}; expected ids below {vocab_size}")
    if len(ids) > count:
        longer = "the prompt comes with them; return the new ids only" if ids[: len(prompt)] == list(prompt) else "too many"
        raise PluginError(f"callable '{name}' returned {len(ids)} ids where {count} new ones were asked for: {longer}")


def _plain(token: Any) -> Any:
    """Any kind of whole number as an int; other things as they are."""
    if not isinstance(token, bool):
        with suppress(TypeError):
            return operator.index(token)
    return token


@dataclass(frozen=True, slots=True)
class Answered:
    """The part of an answer that is judged: up to its first stop token.

    stop_left_out: the text ended early and did not say by which stop token; a placeholder stands at its end.
    """

    tokens: tuple[int, ...]
    stop_left_out: bool = False


def judged_part(answer: tuple[int, ...], count: int, stop_ids: Collection[int]) -> Answered:
    """What of an answer to a request for `count` ids is judged. Raises PluginError where it ended early and could not have."""
    end = next((place for place, token in enumerate(answer) if token in stop_ids), None)
    if end is not None:
        return Answered(answer[: end + 1])
    if len(answer) == count:
        return Answered(answer)
    if not stop_ids:
        raise PluginError(
            f"the callable returned {len(answer)} of {count} ids, and the target has no stop token that could have ended "
            "the text"
        )
    return Answered((*answer, min(stop_ids)), stop_left_out=True)
