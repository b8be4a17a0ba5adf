"""Silence around calls of transformers, and the one lock of the process on the settings that these change."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from threading import RLock
from typing import Final

import torch

_ONE_THREAD: Final = RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, warnings or log lines below errors from transformers and the hub's client; put back afterwards.

    One thread at a time: beside these, transformers changes torch's default dtype and its initialisers while it loads, and two
    loads at once would each take the other's settings for those to put back.
    """
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    with _ONE_THREAD, warnings.catch_warnings():
        bars, level, hub_level = logging.is_progress_bar_enabled(), logging.get_verbosity(), hub_logging.get_verbosity()
        dtype = torch.get_default_dtype()
        warnings.simplefilter("ignore")
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        hub_logging.set_verbosity(ERROR)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            logging.set_verbosity(level)
            hub_logging.set_verbosity(hub_level)
            if bars:
                logging.enable_progress_bar()
