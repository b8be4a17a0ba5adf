"""Faults inside a part, ours or a plug-in's, become one error that names the part and its package."""

from types import TracebackType
from typing import Any

from specdec.errors import PluginError, SpecdecError


class PartGuard:
    """`with guard:` around a call of a part. Any number of calls, one after another.

    An exception that is no SpecdecError, sys.exit included, is raised again as PluginError with the first as its cause.
    Running out of memory and interrupts pass: no part is to blame for them.
    """

    __slots__ = ("label",)

    def __init__(self, kind: str, part: Any, package: str | None = None) -> None:
        cls = part if isinstance(part, type) else type(part)
        home = cls.__module__.partition(".")[0] if package is None else package
        self.label = f"{kind} '{getattr(cls, 'name', cls.__name__)}' of '{home}'"

    def __enter__(self) -> None:
        pass

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, Exception | SystemExit) or isinstance(error, SpecdecError) or out_of_memory(error):
            return
        raise PluginError(f"{self.label} fails: {type(error).__name__}: {error}") from error


def out_of_memory(error: BaseException) -> bool:
    """Whether the machine, not the code, is at its end; torch is not imported for it."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
