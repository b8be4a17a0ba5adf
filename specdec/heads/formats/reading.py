"""Reading a draft head's folder: every tensor is accounted for, and none is ever made up."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from specdec.errors import CheckpointError
from specdec.files.paths import is_file, matching
from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.formats.checkpoint import EMBEDDING, LM_HEAD, HeadCheckpoint
from specdec.heads.formats.config_file import ConfigFile, head_config, read_config
from specdec.heads.layers import Attention
from specdec.nn.rope import inverse_frequencies

MAPS = ("draft_ids", "d2t", "t2d")


def read_head(
    folder: Path,
    *,
    config_file: ConfigFile | None = None,
    layers: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> HeadCheckpoint:
    """The head in `folder`, for inference.

    Embeddings are the target's where the file has none; so is the LM head of an EAGLE-1 head that does not own one.

    Args:
        folder: Where its config.json and its weights are.
        config_file: Its config.json, where that has been read already.
        layers: As in `head_config`.
        dtype: None keeps the file's.
        device: None: the CPU.

    Raises:
        CheckpointError: For anything else that is missing, superfluous or misshapen, with all names.
    """
    file = read_config(folder) if config_file is None else config_file
    config = head_config(file, layers)
    tensors = _named_tensors(folder, config)
    _check_numbers(folder, {name: tensor for name, tensor in tensors.items() if name not in MAPS})
    maps = {name: tensors.pop(name) for name in MAPS if name in tensors}
    cast = {name: tensor.to(device=device, dtype=dtype or tensor.dtype) for name, tensor in tensors.items()}
    embedding = cast.pop(EMBEDDING, None)
    lm_head = cast.pop(LM_HEAD, None) if config.kind == "eagle" and not config.own_lm_head else None
    _check_shared(folder, config, embedding, lm_head)
    head = _assembled(folder, config, cast)
    draft_ids = _draft_ids(folder, config, maps, published=file.is_published)
    lm_head = lm_head if head.lm_head is None else head.lm_head.weight
    return HeadCheckpoint(head, None if draft_ids is None else draft_ids.to(device), embedding, lm_head)


def _named_tensors(folder: Path, config: HeadConfig) -> dict[str, Tensor]:
    """The tensors by the names that heads have here."""
    tensors = _read_tensors(folder)
    if config.kind == "eagle" and "fc.weight" not in tensors:
        raise CheckpointError(f"{folder}: not an EAGLE head: its weights have no fc.weight")
    return {_renamed(name): tensor for name, tensor in tensors.items()} if config.kind == "eagle3" else tensors


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All safetensors of the folder, else pytorch_model.bin, which is read as data and never run."""
    files = matching(folder, "*.safetensors")
    pickled = folder / "pytorch_model.bin"
    try:
        if files or not is_file(pickled):
            tensors = _of_safetensors(folder, files)
        else:
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # torch's reader raises whatever bytes that are not its own lead to
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error
    if not isinstance(tensors, Mapping) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise CheckpointError(f"{pickled}: got no mapping of names to tensors")
    if strange := sorted(str(name) for name, tensor in tensors.items() if tensor.layout is not torch.strided):
        raise CheckpointError(f"{pickled}: the weights are sparse: {', '.join(strange)}")
    if not tensors:
        raise CheckpointError(f"{folder}: there are no weights; model.safetensors or pytorch_model.bin would work")
    return dict(tensors)


def _of_safetensors(folder: Path, files: Iterable[Path]) -> dict[str, Tensor]:
    """The tensors of all files. Raises CheckpointError for one that two files have: which of them holds is not known."""
    tensors: dict[str, Tensor] = {}
    homes: dict[str, str] = {}
    for path in files:
        with safe_open(path, framework="pt") as opened:
            names = list(opened.keys())
            if repeated := sorted(homes.keys() & set(names)):
                listed = ", ".join(repeated[:3]) + (f" and {len(repeated) - 3} more" if len(repeated) > 3 else "")
                raise CheckpointError(
                    f"{folder}: {path.name} repeats tensors of {homes[repeated[0]]} ({listed}); one of them is out of place"
                )
            homes |= dict.fromkeys(names, path.name)
            tensors |= {name: opened.get_tensor(name) for name in names}
    return tensors


def _check_numbers(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for weights that are whole numbers, scaled to eight bits, NaN or infinite, with all names."""
    whole = sorted(name for name, tensor in weights.items() if not tensor.is_floating_point())
    if whole:
        raise CheckpointError(f"{folder}: the weights are no floating-point numbers: {', '.join(whole)}")
    short = sorted(f"{name} ({tensor.dtype})" for name, tensor in weights.items() if tensor.dtype.itemsize < 2)
    if short:
        raise CheckpointError(f"{folder}: the weights need scales that heads do not have: {', '.join(short)}")
    broken = sorted(name for name, tensor in weights.items() if not bool(torch.isfinite(tensor.float()).all()))
    if broken:
        raise CheckpointError(f"{folder}: the weights have NaN or infinity: {', '.join(broken)}")


def _renamed(name: str) -> str:
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


def _assembled(folder: Path, config: HeadConfig, tensors: Mapping[str, Tensor]) -> EagleHead | EagleHead3:
    """The module around these very tensors. Rotary frequencies stay in float32 whatever the dtype."""
    with torch.device("meta"):
        head: EagleHead | EagleHead3 = EagleHead3(config) if config.layers else EagleHead(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    misshapen = (
        f"{name} {tuple(tensors[name].shape)}, expected {shape}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    )
    _refuse(folder, missing=wanted.keys() - tensors.keys(), extra=tensors.keys() - wanted.keys(), misshapen=misshapen)
    head.load_state_dict(dict(tensors), strict=True, assign=True)
    for module in head.modules():
        if isinstance(module, Attention):
            frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
            module.frequencies = frequencies.to(module.q_proj.weight.device)
    return head.eval().requires_grad_(False)


def _check_shared(folder: Path, config: HeadConfig, embedding: Tensor | None, lm_head: Tensor | None) -> None:
    """What the target may share, of the right shape where it is there."""
    sizes = {EMBEDDING: (embedding, config.vocab_size), LM_HEAD: (lm_head, config.output_size)}
    misshapen = (
        f"{name} {tuple(tensor.shape)}, expected {(rows, config.hidden_size)}"
        for name, (tensor, rows) in sizes.items()
        if tensor is not None and tuple(tensor.shape) != (rows, config.hidden_size)
    )
    _refuse(folder, misshapen=misshapen)


def _refuse(folder: Path, *, missing: Iterable[str] = (), extra: Iterable[str] = (), misshapen: Iterable[str] = ()) -> None:
    lists = {"missing": sorted(missing), "superfluous": sorted(extra), "misshapen": sorted(misshapen)}
    faults = [f"{fault}: {', '.join(names)}" for fault, names in lists.items() if names]
    if faults:
        raise CheckpointError(f"{folder}: the weights do not fit config.json; {'; '.join(faults)}")


def _draft_ids(folder: Path, config: HeadConfig, maps: Mapping[str, Tensor], *, published: bool) -> Tensor | None:
    """The target id of each column. Published heads store offsets (`d2t`: id = column + offset), ours the ids."""
    name = "d2t" if published else "draft_ids"
    strangers = maps.keys() - ({"d2t", "t2d"} if published else {"draft_ids"})
    reduced = config.draft_vocab_size is not None and (not published or config.draft_vocab_size != config.vocab_size)
    _refuse(folder, missing={name} - maps.keys() if reduced else set(), extra=strangers)
    if name not in maps:
        return None
    stored = maps[name]
    if stored.is_floating_point() or tuple(stored.shape) != (config.output_size,):
        shape = f"{stored.dtype} {tuple(stored.shape)}"
        raise CheckpointError(f"{folder}: {name} is {shape}, expected {config.output_size} integers, one a draft token")
    ids = stored.to(torch.int64) + (torch.arange(len(stored)) if published else 0)
    if len(set(ids.tolist())) != len(ids) or int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        meant = "offsets: target id = draft id + d2t[draft id]" if published else "target ids"
        raise CheckpointError(f"{folder}: {name} does not name {len(ids)} different ids below {config.vocab_size} ({meant})")
    if "t2d" in maps and not torch.equal(maps["t2d"].bool().nonzero()[:, 0], ids.sort().values):
        raise CheckpointError(f"{folder}: d2t and t2d name different tokens; d2t holds offsets: target id = i + d2t[i]")
    return None if torch.equal(ids, torch.arange(config.vocab_size)) else ids
