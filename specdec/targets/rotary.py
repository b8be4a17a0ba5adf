"""The two sets of rotary frequencies of a model that has them, each for whole forwards."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specdec.targets.context import TWO_SETS


class LongFactors:
    """Lets every position of a forward be turned by the model's long factors, as long as they are taken.

    The model's own code chooses them once a position beyond the original length is in the forward; so each call of its rotary
    module gets one such position more, whose rotation is dropped.
    """

    def __init__(self, modules: Sequence[nn.Module], far: int) -> None:
        """modules: those that rotate. far: a position that has the long factors."""
        self._far = far
        self._taken = False
        for module in modules:
            module.register_forward_pre_hook(self._add_position, with_kwargs=True)
            module.register_forward_hook(self._drop_position)

    @classmethod
    def of(cls, model: Any, far: int) -> "LongFactors | None":
        """Those of a model; None where no rotary module is known."""
        modules = [module for module in model.modules() if _has_two_sets(module)]
        return cls(modules, far) if modules else None

    @contextmanager
    def taken(self, wanted: bool = True) -> Iterator[None]:
        """Forwards within take the long factors, or, where these are not wanted, those that their own positions call for."""
        before, self._taken = self._taken, wanted
        try:
            yield
        finally:
            self._taken = before

    def _add_position(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._taken:
            return args, kwargs
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": self._extended(kwargs["position_ids"])}
        return (args[0], self._extended(args[1]), *args[2:]), kwargs

    def _drop_position(self, _: nn.Module, __: Any, output: Any) -> Any:
        if not self._taken:
            return output
        return output[..., :-1, :] if isinstance(output, Tensor) else tuple(part[..., :-1, :] for part in output)

    def _extended(self, positions: Tensor) -> Tensor:
        return torch.cat((positions, positions.new_full((*positions.shape[:-1], 1), self._far)), dim=-1)


def _has_two_sets(module: nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    return any(kind in TWO_SETS for kind in (kinds.values() if isinstance(kinds, dict) else [kinds]))
