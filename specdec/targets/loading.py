"""Configs, weights and tokenizers from folders or the hub, without progress bars or chatter.

transformers is imported when something is loaded, not before: checking a spec of the embedded model does without.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from pickle import UnpicklingError
from threading import RLock
from typing import Any, Final

import torch

from specdec.errors import CheckpointError, TargetMismatch
from specdec.targets.capability import no_decoding_because
from specdec.targets.hub import cached_folder, hub_answers, local_folder
from specdec.targets.weights import refuse_other_weights, unreadable

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "*.tiktoken",
)


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


def read_config(model: str, *, revision: str | None, trust_remote_code: bool, local_only: bool) -> Any | None:
    """The model's config.json, or None for a hub id that is out of reach. local_only: nothing is downloaded.

    Raises TargetMismatch for a name that can be no model's, and for a config that cannot be read.
    """
    folder = local_folder(model)
    if folder is not None:
        _refuse_broken_json(model, folder / "config.json")
    elif local_only and cached_folder(model, revision) is None:
        return None
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(
                model if folder is None else str(folder),
                revision=revision,
                trust_remote_code=trust_remote_code,
                local_files_only=local_only,
            )
    except OSError:
        return None
    except Exception as error:  # the values of a config.json reach transformers unchecked
        raise TargetMismatch(f"the config of '{model}' cannot be read: {_first_line(error)}") from error


def _refuse_broken_json(model: str, file: Path) -> None:
    if not file.is_file():
        raise TargetMismatch(f"the folder '{model}' has no config.json; a model is a folder with one, or a hub id")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TargetMismatch(f"the config.json of '{model}' is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise TargetMismatch(f"the config.json of '{model}' holds a {type(config).__name__}, expected an object")


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
    """The model in evaluation mode on its device.

    Raises TargetMismatch where it cannot be found or decoded, CheckpointError where its weights are not those of its config.
    """
    folder = local_folder(model)
    local_only = folder is None and not hub_answers(model, revision)
    config = read_config(model, revision=revision, trust_remote_code=trust_remote_code, local_only=local_only)
    if config is None:
        raise TargetMismatch(f"'{model}' is neither a folder with a config.json nor a hub repository within reach")
    if (reason := no_decoding_because(config, attention)) is not None:
        raise TargetMismatch(f"'{model}' cannot be decoded: {reason}")
    settings: dict[str, Any] = {
        "dtype": "auto" if dtype is None else DTYPES[dtype],
        "attn_implementation": attention,
        "device_map": device_map,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "local_files_only": local_only,
    }
    if dtype == "float64":
        # transformers' fused experts take no float64.
        settings["experts_implementation"] = "eager"
    loaded = _whole_model(model, folder, settings)
    return loaded if device_map is not None else loaded.to(resolve_device(device))


def _whole_model(model: str, folder: Path | None, settings: dict[str, Any]) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    source = model if folder is None else str(folder)
    try:
        with quiet():
            # Weights of another shape are let pass here, so that they are refused below by their names.
            loaded, found = AutoModelForCausalLM.from_pretrained(
                source, output_loading_info=True, ignore_mismatched_sizes=True, **settings
            )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, ImportError) as error:
        hint = "; attention: eager would work" if 'attn_implementation="eager"' in str(error) else ""
        raise TargetMismatch(f"'{model}' cannot be loaded: {_first_line(error).split('. Please')[0]}{hint}") from error
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        raise unreadable(model, _files(model, settings["revision"]), error) from error
    refuse_other_weights(model, found)
    return loaded


def load_tokenizer(model: str, *, revision: str | None, trust_remote_code: bool) -> Any | None:
    """The tokenizer, or None where the model comes without one. Raises CheckpointError for one that cannot be read."""
    folder = local_folder(model)
    if folder is not None and not _has_tokenizer(folder):
        return None
    from transformers import AutoTokenizer

    local_only = folder is None and not hub_answers(model, revision)
    source = model if folder is None else str(folder)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                source, revision=revision, trust_remote_code=trust_remote_code, local_files_only=local_only
            )
    except Exception as error:  # the contents of its files reach the tokenizers' parsers unchecked
        _refuse_tokenizer_files(model, revision, f"{type(error).__name__}: {_first_line(error)}", error)
        return None
    # Without a vocabulary, transformers makes up a tokenizer of nothing, or of special tokens only.
    if len(set(tokenizer.all_special_ids)) >= len(tokenizer):
        _refuse_tokenizer_files(model, revision, "it comes without a vocabulary", None)
        return None
    return tokenizer


def _refuse_tokenizer_files(model: str, revision: str | None, reason: str, error: Exception | None) -> None:
    """Raise CheckpointError if there are files of a tokenizer: then it was not meant to come without one."""
    files = _files(model, revision)
    if files is not None and _has_tokenizer(files):
        raise CheckpointError(f"the tokenizer of '{model}' cannot be read: {reason}") from error


def _has_tokenizer(folder: Path) -> bool:
    return any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern))


def _files(model: str, revision: str | None) -> Path | None:
    """The folder that the model was read from."""
    return local_folder(model) or cached_folder(model, revision)


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
