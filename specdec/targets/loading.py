"""Configs, weights and tokenizers from folders or the hub, without progress bars or chatter."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specdec.errors import TargetMismatch
from specdec.targets.capability import no_decoding_because, refuse_missing_folder

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, warnings or log lines below errors from transformers; put back afterwards."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_config(model: str, *, revision: str | None, trust_remote_code: bool, local_only: bool) -> Any | None:
    """The model's config.json, or None for a hub id that is out of reach. local_only: nothing is downloaded."""
    refuse_missing_folder(model)
    try:
        with quiet():
            return AutoConfig.from_pretrained(
                model, revision=revision, trust_remote_code=trust_remote_code, local_files_only=local_only
            )
    except OSError:
        return None
    except (ValueError, KeyError) as error:
        raise TargetMismatch(f"the config of '{model}' cannot be read: {_first_line(error)}") from error


def load_model(
    model: str,
    *,
    dtype: str | None,
    device: str,
    attention: str,
    device_map: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The model in evaluation mode on its device. Raises TargetMismatch where it cannot be loaded or decoded."""
    config = read_config(model, revision=revision, trust_remote_code=trust_remote_code, local_only=False)
    if config is None:
        raise TargetMismatch(f"'{model}' is neither a folder with a config.json nor a hub repository within reach")
    if (reason := no_decoding_because(config, attention)) is not None:
        raise TargetMismatch(f"'{model}' cannot be decoded: {reason}")
    # transformers' fused experts take no float64.
    experts = {"experts_implementation": "eager"} if dtype == "float64" else {}
    try:
        with quiet():
            loaded = AutoModelForCausalLM.from_pretrained(
                model,
                dtype="auto" if dtype is None else DTYPES[dtype],
                attn_implementation=attention,
                device_map=device_map,
                revision=revision,
                trust_remote_code=trust_remote_code,
                **experts,
            )
    except (OSError, ValueError, ImportError) as error:
        hint = "; attention: eager would work" if 'attn_implementation="eager"' in str(error) else ""
        raise TargetMismatch(f"'{model}' cannot be loaded: {_first_line(error).split('. Please')[0]}{hint}") from error
    return loaded if device_map is not None else loaded.to(resolve_device(device))


def load_tokenizer(model: str, *, revision: str | None, trust_remote_code: bool) -> Any | None:
    """The tokenizer, or None where the model comes without one."""
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError):
        return None
    # Without files, transformers makes up an empty tokenizer for some kinds of model.
    return tokenizer if tokenizer.vocab_size else None


def resolve_device(device: str) -> torch.device:
    """'auto' is the GPU where there is one. Raises TargetMismatch for a device that torch does not have."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise TargetMismatch(f"no device '{device}'; cpu, cuda and auto would work") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise TargetMismatch(f"torch sees no GPU for device '{device}'; device: cpu or auto would work")
    return wanted


def stop_ids(model: Any) -> frozenset[int]:
    """The end-of-sequence ids of the generation config, else of the config."""
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
