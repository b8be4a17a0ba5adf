"""Which logits processor a sequence calls: one with a state of its own may not serve two sequences.

A function is taken to be without state. A class stands for a fresh object for each sequence, and an object with a method
`fork()`, which returns one that goes on from the same state by itself, for one fork each. Any other object may be shared as
long as calls do not change it, which is looked at. Under a verifier that reads rows off the path that it takes, branches share
a processor as sequences do.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from re import Pattern
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor

from specdec.errors import SpecError
from specdec.sampling.logits_warper import LogitsProcessor

DEPTH = 3
ITEMS = 64
"""How deep and how far an object's attributes are compared."""

SEEN: tuple[type[Any], ...] = (
    *(str, bytes, int, float, complex, NoneType, range, type, Pattern, torch.dtype, torch.device),
    *(Tensor, Mapping, list, tuple, set, frozenset, FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)
"""What is compared, or never changes."""

WITHOUT_STATE = (FunctionType, BuiltinFunctionType)


_FORK = (
    "their states would be mixed: give it a method fork() that returns one that goes on by itself, pass its class in place of "
    "an object, "
)
_MIXED = "{} sequences share it, so that " + _FORK + "or one object for each request with n = 1"
_BRANCHED = (
    "verifier '{}' reads rows of branches that are not taken, so that "
    + _FORK
    + "or take a verifier that reads along the path, such as 'match'"
)


class SharedProcessor:
    """A processor that several sequences or branches call. Its first call may set it up; a later one that changes it raises.

    sharers: who shares it and what that would do, for the SpecError.
    """

    def __init__(self, inner: LogitsProcessor, sharers: str) -> None:
        self._inner = inner
        self._sharers = sharers
        self._holder = getattr(inner, "__self__", inner)
        self._called = False
        self.__qualname__ = getattr(inner, "__qualname__", type(inner).__qualname__)
        self._refuse_unseen()

    def _refuse_unseen(self) -> None:
        """Raise SpecError where calls could change what Python does not show, such as a state of native code."""
        held = _held(self._holder)
        unseen = next((name for name, value in held.items() if _is_native(value)), None)
        if unseen is not None or (not held and _is_native(self._holder)):
            what = "is" if unseen is None else f"holds '{unseen}',"
            kind = type(self._holder if unseen is None else held[unseen]).__name__
            unseen_kind = f"{what} a {kind}, whose state cannot be seen"
            raise SpecError(f"logits processor {self.__qualname__} {unseen_kind}, and {self._sharers}")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        before = _attributes(self._holder) if self._called else None
        self._called = True
        answer = self._inner(input_ids, scores)
        if before is not None and (changed := _changed(before, _attributes(self._holder))) is not None:
            raise SpecError(
                f"logits processor {self.__qualname__} changes its '{changed}' when it is called, and {self._sharers}"
            )
        return answer


class CopiedProcessor:
    """A processor that was made for one sequence; its forks are copies."""

    def __init__(self, inner: LogitsProcessor) -> None:
        self._inner = inner
        self.__qualname__ = type(inner).__qualname__

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._inner(input_ids, scores)

    def fork(self) -> "CopiedProcessor":
        """Raises SpecError for what cannot be copied."""
        try:
            return CopiedProcessor(copy.deepcopy(self._inner))
        except Exception as error:
            raise SpecError(
                f"logits processor {self.__qualname__} cannot be copied for another branch of the draft ({error}): "
                "give it a method fork()"
            ) from error


def processors_by_sequence(
    given: Sequence[Sequence[LogitsProcessor]], *, branches_for: str | None = None
) -> list[tuple[LogitsProcessor, ...]]:
    """The processors that each sequence calls, of those that it was given.

    branches_for: the verifier that reads rows of branches that are not taken; None: rows are read along the path alone.
    """
    sharers = Counter(_holder_id(processor) for processors in given for processor in processors)
    guards: dict[int, LogitsProcessor] = {}

    def own(processor: Any) -> LogitsProcessor:
        if isinstance(processor, type):
            made = _made(processor, processor)
            return made if branches_for is None or callable(getattr(made, "fork", None)) else CopiedProcessor(made)
        fork = getattr(processor, "fork", None)
        if callable(fork):
            return _made(fork, processor)
        number = sharers[_holder_id(processor)]
        is_function = isinstance(processor, WITHOUT_STATE) and _holder_id(processor) == id(processor)
        if is_function or (number == 1 and branches_for is None):
            return processor  # type: ignore[no-any-return]
        words = _MIXED.format(number) if number > 1 else _BRANCHED.format(branches_for)
        return guards.setdefault(id(processor), SharedProcessor(processor, words))

    return [tuple(own(processor) for processor in processors) for processors in given]


def _made(make: Any, processor: Any) -> LogitsProcessor:
    name = getattr(processor, "__qualname__", type(processor).__qualname__)
    try:
        made = make()
    except Exception as error:
        raise SpecError(f"logits processor {name}: no fresh one can be made: {type(error).__name__}: {error}") from error
    if not callable(made):
        raise SpecError(
            f"logits processor {name}: a fresh one is {type(made).__name__}; expected a callable (input_ids, scores)"
        )
    return made  # type: ignore[no-any-return]


def _holder_id(processor: Any) -> int:
    """Of what has the state: of a method, its object, since each look at a method makes another one."""
    holder = getattr(processor, "__self__", None)
    return id(processor if holder is None or isinstance(holder, ModuleType) else holder)


def _attributes(holder: Any) -> dict[str, Any]:
    return {name: _mark(value, DEPTH) for name, value in _held(holder).items()}


def _held(value: Any) -> dict[str, Any]:
    """What an object holds, in its `__dict__` and in the `__slots__` of its classes."""
    declared = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    slotted = {name: getattr(value, name) for name in names if hasattr(value, name) and name not in ("__dict__", "__weakref__")}
    return {**slotted, **getattr(value, "__dict__", {})}


def _is_native(value: Any) -> bool:
    """Whether a value is of a class written in another language that is not known to be seen or never to change."""
    in_python = hasattr(value, "__dict__") or any("__slots__" in vars(kind) for kind in type(value).__mro__)
    return not isinstance(value, SEEN) and not in_python


def _mark(value: Any, depth: int) -> Any:
    """Something that differs once the value was changed, in place or by another."""
    mark: tuple[Any, ...] = (id(value), value._version if isinstance(value, Tensor) and not value.is_inference() else None)
    if not depth or isinstance(value, str | bytes | Tensor):
        return mark
    if isinstance(value, Mapping):
        return (*mark, len(value), [(_mark(k, 0), _mark(v, depth - 1)) for k, v in [*value.items()][:ITEMS]])
    if isinstance(value, list | tuple | set | frozenset):
        return (*mark, len(value), [_mark(item, depth - 1) for item in [*value][:ITEMS]])
    if isinstance(value, type) or not (inside := _held(value)):
        return mark
    return (*mark, [(name, _mark(v, depth - 1)) for name, v in [*inside.items()][:ITEMS]])


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first attribute that is not what it was."""
    return next((name for name in {**before, **after} if before.get(name) != after.get(name)), None)
