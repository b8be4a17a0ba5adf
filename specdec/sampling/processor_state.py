"""Which logits processor a sequence calls: one with a state of its own may not serve two sequences.

A function is taken to be without state. A class stands for a fresh object for each sequence, and an object with a method
`fork()` for one fork each. Any other object may be shared as long as calls do not change it, which is looked at.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import Tensor

from specdec.errors import SpecError
from specdec.sampling.logits_warper import LogitsProcessor

DEPTH = 3
ITEMS = 64
"""How deep and how far an object's attributes are compared."""

WITHOUT_STATE = (FunctionType, BuiltinFunctionType)


class SharedProcessor:
    """A processor that several sequences call. Its first call may set it up; raises SpecError where a later one changes it."""

    def __init__(self, inner: LogitsProcessor, sharers: int) -> None:
        self._inner = inner
        self._sharers = sharers
        self._holder = getattr(inner, "__self__", inner)
        self._called = False
        self.__qualname__ = getattr(inner, "__qualname__", type(inner).__qualname__)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        before = _attributes(self._holder) if self._called else None
        self._called = True
        answer = self._inner(input_ids, scores)
        if before is not None and (changed := _changed(before, _attributes(self._holder))) is not None:
            raise SpecError(
                f"logits processor {self.__qualname__} changes its '{changed}' when it is called, and {self._sharers} "
                "sequences share it, so that their states would be mixed: give it a method fork() that returns a fresh one, "
                "pass its class in place of an object, or one object for each request with n = 1"
            )
        return answer


def processors_by_sequence(given: Sequence[Sequence[LogitsProcessor]]) -> list[tuple[LogitsProcessor, ...]]:
    """The processors that each sequence calls, of those that it was given."""
    sharers = Counter(id(processor) for processors in given for processor in processors)
    guards: dict[int, LogitsProcessor] = {}

    def own(processor: Any) -> LogitsProcessor:
        if isinstance(processor, type):
            return _made(processor, processor)
        fork = getattr(processor, "fork", None)
        if callable(fork):
            return _made(fork, processor)
        if sharers[id(processor)] == 1 or isinstance(processor, WITHOUT_STATE):
            return processor  # type: ignore[no-any-return]
        return guards.setdefault(id(processor), SharedProcessor(processor, sharers[id(processor)]))

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


def _attributes(holder: Any) -> dict[str, Any]:
    return {name: _mark(value, DEPTH) for name, value in getattr(holder, "__dict__", {}).items()}


def _mark(value: Any, depth: int) -> Any:
    """Something that differs once the value was changed, in place or by another."""
    mark: tuple[Any, ...] = (id(value), value._version if isinstance(value, Tensor) and not value.is_inference() else None)
    if not depth or isinstance(value, str | bytes | Tensor):
        return mark
    if isinstance(value, Mapping):
        return (*mark, len(value), [(_mark(k, 0), _mark(v, depth - 1)) for k, v in [*value.items()][:ITEMS]])
    if isinstance(value, list | tuple | set | frozenset):
        return (*mark, len(value), [_mark(item, depth - 1) for item in [*value][:ITEMS]])
    inside = getattr(value, "__dict__", None)
    if isinstance(value, type) or not isinstance(inside, dict):
        return mark
    return (*mark, [(name, _mark(v, depth - 1)) for name, v in [*inside.items()][:ITEMS]])


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first attribute that is not what it was."""
    return next((name for name in {**before, **after} if before.get(name) != after.get(name)), None)
