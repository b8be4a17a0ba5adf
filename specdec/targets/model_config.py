"""A model's config.json read as data, and whether the model needs code that it brings itself."""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec.errors import TargetMismatch
from specdec.files.json_object import read_json_object
from specdec.files.paths import exists
from specdec.interfaces.consent import HOW
from specdec.targets.hub import cached_folder, local_folder
from specdec.targets.quiet import quiet

ADAPTER = "adapter_config.json"
MODEL_CLASSES = ("AutoConfig", "AutoModelForCausalLM")
MAX_LAYERS = 10_000
COUNTS_LAYERS = re.compile(r"(^|_)(layers?|blocks)$")


def declared_config(model: str, *, revision: str | None, trusted: bool) -> Any | None:
    """What the config.json of a folder, or of the hub's local cache, tells; None for a hub id that is not there.

    Nothing is downloaded, and no code of the model is run even where that is trusted: a config that only such code would
    understand is answered with its plain keys as attributes.

    Raises:
        TargetMismatch: for a name that can be no model's, a config that cannot be read, or a model that needs code of its
            own without being trusted.
    """
    folder = local_folder(model) or cached_folder(model, revision)
    if folder is None:
        return None
    refuse_adapter(model, folder)
    data = config_data(model, folder)
    refuse_own_code(model, data, trusted=trusted)
    from transformers import AutoConfig, PreTrainedConfig

    try:
        with quiet():
            if not needs_own_code(data):
                return AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
            inner = {key: PreTrainedConfig(**value) for key, value in data.items() if key == "text_config"}
            return PreTrainedConfig.from_dict({**data, **inner})
    except Exception as error:  # the values of a config.json reach transformers unchecked
        raise unreadable_config(model, error) from error


def config_data(model: str, folder: Path) -> dict[str, Any]:
    """The keys of the folder's config.json. Raises TargetMismatch where it is no JSON object, or counts too many layers."""
    try:
        data = read_json_object(folder / "config.json")
    except FileNotFoundError as error:
        raise TargetMismatch(f"the folder '{model}' has no config.json; a model is a folder with one, or a hub id") from error
    except ValueError as error:
        raise TargetMismatch(f"the config.json of '{model}' {error}") from error
    for key, value in _whole_numbers(data):
        if value > MAX_LAYERS and COUNTS_LAYERS.search(key):
            raise TargetMismatch(f"the config.json of '{model}' has {key}: {value}, expected at most {MAX_LAYERS}")
    return data


def refuse_adapter(model: str, folder: Path | None, *, ask_hub: Callable[[], bool] = lambda: False) -> None:
    """Raise TargetMismatch for a model with an adapter where peft, which would apply it, is not installed.

    ask_hub: whether the hub has one, for a model that is in no folder.
    """
    if find_spec("peft") is not None:
        return
    if exists(folder / ADAPTER) if folder is not None else ask_hub():
        raise TargetMismatch(
            f"'{model}' comes with an adapter ({ADAPTER}), which would be left out without peft: pip install 'specdec[peft]'; "
            f"a model without {ADAPTER}, or with the adapter merged into its weights, would work"
        )


def needs_own_code(data: Mapping[str, Any]) -> bool:
    """Whether the model can be run only with code from its own repository: transformers has no class of its type."""
    brings = data.get("auto_map")
    if not isinstance(brings, Mapping) or not any(name in brings for name in MODEL_CLASSES):
        return False
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    model_type = data.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return True
    return CONFIG_MAPPING[model_type] not in MODEL_FOR_CAUSAL_LM_MAPPING


def refuse_own_code(model: str, data: Mapping[str, Any], *, trusted: bool) -> None:
    """Raise TargetMismatch for a model that needs code of its own, unless it is trusted."""
    if not trusted and needs_own_code(data):
        brings = data["auto_map"]
        files = sorted({str(brings[name]).partition(".")[0] + ".py" for name in MODEL_CLASSES if name in brings})
        raise TargetMismatch(
            f"'{model}' needs code of its own ({', '.join(files)}), which is run only where whoever runs it consents: {HOW}"
        )


def unreadable_config(model: str, error: Exception) -> TargetMismatch:
    """The error of a config.json that transformers does not take."""
    lines = str(error).strip().splitlines()
    return TargetMismatch(f"the config of '{model}' cannot be read: {lines[0] if lines else type(error).__name__}")


def _whole_numbers(value: Any) -> Iterator[tuple[str, int]]:
    """All keys with a whole number, at any depth."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if isinstance(item, int):
            yield str(key), item
        yield from _whole_numbers(item)
