"""Where a head's files lie: a folder, the hub, or the package itself."""

import re
from pathlib import Path

from specdec.errors import CheckpointError
from specdec.files.paths import exists, expanded, is_file, is_folder, matching

SHIPPED = Path(__file__).parent / "shipped"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
PICKLED = ("pytorch_model.bin", "medusa_lm_head.pt", "hydra_lm_head.pt")
"""Weights in torch's own format, in the order in which they are looked for; they are read as data and never run."""

FILES = ("config.json", "*.safetensors", *PICKLED)


def locate_head(name: str, kind: str, *, revision: str | None = None, download: bool) -> Path | None:
    """The folder of a head. name: a folder, a hub id, or `builtin` for the shipped head of this kind.

    None for a hub id that is out of reach; without `download`, the local cache is all that is in reach.
    Raises CheckpointError where nothing can be meant by the name.
    """
    if name == "builtin":
        if not is_file(SHIPPED / kind / "config.json"):
            others = [path.parent.name for path in matching(SHIPPED, "*/config.json")]
            instead = f"; drafter '{others[0]}' has one" if others else ""
            raise CheckpointError(
                f"no '{kind}' head ships with this version{instead}; a folder or a hub id of a trained head would work"
            )
        return SHIPPED / kind
    folder = expanded(name)
    if is_folder(folder):
        return folder
    if exists(folder) or not HUB_ID.fullmatch(name):
        raise CheckpointError(f"{name}: no such folder; a head is a folder with a config.json, a hub id, or 'builtin'")
    return _from_hub(name, revision, download=download)


def _from_hub(name: str, revision: str | None, *, download: bool) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, revision=revision, allow_patterns=list(FILES), local_files_only=not download)
    except (OSError, ValueError):
        return None
    return Path(found) if is_file(Path(found) / "config.json") else None
