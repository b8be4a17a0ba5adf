"""Faults inside a part, ours or a plug-in's, become one error that names the part and its package."""

from types import TracebackType
from typing import Any

from specdec.errors import PluginError, SpecdecError, SpecError

OURS = "specdec"


class PartGuard:
    """`with guard:` around a call of a part. Any number of calls, one after another.

    An exception that is no SpecdecError, sys.exit included, is raised again as PluginError with the first as its cause; a file
    that one of our own parts cannot read as SpecError. Running out of memory and interrupts pass: no part is to blame for them.
    """

    __slots__ = ("_is_ours", "label")

    def __init__(self, kind: str, part: Any, package: str | None = None) -> None:
        cls = part if isinstance(part, type) else type(part)
        home = cls.__module__.partition(".")[0] if package is None else package
        self._is_ours = home == OURS
        self.label = f"{kind} '{getattr(cls, 'name', cls.__name__)}' of '{home}'"

    def __enter__(self) -> None:
        pass

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None or isinstance(error, SpecdecError) or interrupts(error) or out_of_memory(error):
            return
        if self._is_ours and isinstance(error, OSError) and error.filename is not None:
            raise SpecError(f"{error.filename}: cannot be read: {error.strerror or error}") from error
        raise PluginError(f"{self.label} fails: {type(error).__name__}: {error}") from error


def interrupts(error: BaseException) -> bool:
    """Whether somebody else ends the call; asyncio is not imported for it."""
    return isinstance(error, KeyboardInterrupt | GeneratorExit) or type(error).__name__ == "CancelledError"


def out_of_memory(error: BaseException) -> bool:
    """Whether the machine, not the code, is at its end; torch is not imported for it."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
