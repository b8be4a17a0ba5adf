"""Several processes that train one head: sums over all of them."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Processes:
    """One process alone, or accelerate's: what a loss is divided by and the gradients are summed over all of them.

    Each process takes its own batches, and gradients of sums divided by the rows of all are added, so that two processes
    with one batch each do what one does with both.
    """

    def __init__(self, accelerator: Any | None = None) -> None:
        self._accelerator = accelerator if accelerator is not None and accelerator.num_processes > 1 else None
        self.count = 1 if self._accelerator is None else int(self._accelerator.num_processes)
        self.rank = 0 if self._accelerator is None else int(self._accelerator.process_index)

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and logs."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """Over all processes."""
        if self._accelerator is None:
            return value
        total: Tensor = self._accelerator.reduce(value, reduction="sum")
        return total

    def total(self, count: int, device: torch.device) -> int:
        """Of a count."""
        return count if self._accelerator is None else int(self.sum(torch.tensor([count], device=device)))

    def mean(self, value: float, device: torch.device) -> float:
        """Of a number that differs from process to process, such as the time that a step took."""
        if self._accelerator is None:
            return value
        return float(self.sum(torch.tensor([value], dtype=torch.float64, device=device))) / self.count

    def wait(self) -> None:
        """Until all processes are here."""
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """In place; a process without a loss adds zeros."""
        if self._accelerator is None:
            return
        for parameter in parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.sum(gradient)


def processes() -> Processes:
    """Those that `accelerate launch` or torchrun has started; else this one alone."""
    if "WORLD_SIZE" not in os.environ:
        return Processes()
    from accelerate import Accelerator

    return Processes(Accelerator(cpu=not torch.cuda.is_available()))
