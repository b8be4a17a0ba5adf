"""Configs, weights and tokenizers from folders or the hub, without progress bars or chatter.

transformers is imported when something is loaded, not before: checking a spec of the embedded model does without.
"""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from specdec.errors import CheckpointError, TargetMismatch
from specdec.files.paths import matching
from specdec.interfaces.consent import HOW
from specdec.nn.placement import DTYPES, resolve_device
from specdec.targets.capability import no_decoding_because
from specdec.targets.hub import cached_folder, hub_answers, hub_has, local_folder
from specdec.targets.model_config import ADAPTER, config_data, refuse_adapter, refuse_own_code, unreadable_config
from specdec.targets.quiet import quiet
from specdec.targets.weights import refuse_other_numbers, refuse_other_weights, unreadable

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
    refuse_adapter(model, folder, ask_hub=lambda: not local_only and folder is None and hub_has(model, ADAPTER, revision))
    config = _read_config(model, folder, revision=revision, trusted=trust_remote_code, local_only=local_only)
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


def _read_config(model: str, folder: Path | None, *, revision: str | None, trusted: bool, local_only: bool) -> Any:
    """The config, which is downloaded where it has to be; trusted: read by the model's own code, if it brings some."""
    from transformers import AutoConfig

    if folder is not None:
        refuse_own_code(model, config_data(model, folder), trusted=trusted)
    source = model if folder is None else str(folder)
    try:
        with quiet():
            return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=trusted, local_files_only=local_only)
    except OSError as error:
        raise TargetMismatch(f"'{model}' is neither a folder with a config.json nor a hub repository within reach") from error
    except Exception as error:  # the values of a config.json reach transformers unchecked
        if (cached := cached_folder(model, revision)) is not None:
            refuse_own_code(model, config_data(model, cached), trusted=trusted)
        raise unreadable_config(model, error) from error


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
    except Exception as error:  # the values of a config.json reach the model's constructor unchecked
        raise TargetMismatch(f"'{model}' cannot be loaded: {type(error).__name__}: {_first_line(error)}") from error
    refuse_other_weights(model, found)
    if (files := _files(model, settings["revision"])) is not None:
        refuse_other_numbers(model, files, loaded)
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
        reason = f"{type(error).__name__}: {_first_line(error)}"
        if not trust_remote_code and "trust_remote_code" in str(error):
            reason = f"it needs code of its own, which is run only where whoever runs it consents: {HOW}"
        _refuse_tokenizer_files(model, revision, reason, error)
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
    return any(matching(folder, pattern) for pattern in TOKENIZER_FILES)


def _files(model: str, revision: str | None) -> Path | None:
    """The folder that the model was read from."""
    return local_folder(model) or cached_folder(model, revision)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
