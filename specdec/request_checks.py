"""The options of a request, looked at before anything runs."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from specdec.errors import SpecError
from specdec.files.validation import faults
from specdec.prompts import check_text
from specdec.sampling.params import Sampling

SEEDS = 2**63
"""Seeds lie below."""


def check_options(options: Any) -> None:
    """Raise SpecError for a field of a Request with what was got and what is expected."""
    for name, least in (("max_new_tokens", 1), ("n", 1), ("logprobs", 0), ("seed", 0)):
        value = getattr(options, name)
        if (value is not None or name == "n") and (type(value) is not int or value < least):
            raise SpecError(f"{name}: got {value!r}; expected a whole number of at least {least}")
    if options.seed is not None and options.seed >= SEEDS:
        raise SpecError("seed: got a larger number; expected a whole number below 2**63")
    for name, fits, wanted in (
        ("stop", _is_stop, "texts or id sequences, none of them empty; single ids belong in stop_ids"),
        ("stop_ids", _is_id, "whole numbers"),
        ("processors", callable, "callables (input_ids, scores) -> scores"),
    ):
        values = getattr(options, name)
        if isinstance(values, str) or not isinstance(values, Collection):
            raise SpecError(f"{name}: got {values!r}; expected a list, such as [{values!r}]")
        if strangers := [value for value in values if not fits(value)]:
            raise SpecError(f"{name}: got {strangers[0]!r}; expected {wanted}")
    for text in options.stop:
        check_text(text if isinstance(text, str) else "", "stop")
    if not isinstance(options.ignore_eos, bool):
        raise SpecError(f"ignore_eos: got {options.ignore_eos!r}; expected True or False")


def sampling_of(given: Any) -> Sampling | None:
    """A Sampling as it is, or that of a mapping. Raises SpecError with everything that is wrong."""
    if given is None or isinstance(given, Sampling):
        return given
    if not isinstance(given, Mapping):
        raise SpecError(f"sampling: got {given!r}; expected a Sampling or a mapping, such as {{'temperature': 1.0}}")
    given = dict(given)
    found = faults(Sampling, given)
    if found:
        raise SpecError("\n".join(".".join(("sampling", *map(str, path))) + f": {fault}" for path, fault in found.items()))
    return Sampling.model_validate_json(json.dumps(given))


def _is_id(value: Any) -> bool:
    return type(value) is int


def _is_stop(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) > 0 and (isinstance(value, str) or all(map(_is_id, value)))
