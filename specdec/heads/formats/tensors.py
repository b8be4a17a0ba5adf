"""The tensors of a head's folder as they are: every one is accounted for, and none is ever made up."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn

from specdec.errors import CheckpointError
from specdec.files.paths import is_file, matching
from specdec.heads.block import BlockHead
from specdec.heads.checkpoint_path import PICKLED
from specdec.heads.config import VocabularyConfig
from specdec.heads.layers import Attention
from specdec.nn.rope import inverse_frequencies

HeadT = TypeVar("HeadT", bound=nn.Module)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All safetensors of the folder, else one of `PICKLED`, which is read as data and never run."""
    files, pickled = matching(folder, "*.safetensors"), _pickled(folder)
    try:
        tensors = _of_safetensors(folder, files) if files or pickled is None else _of_torch(pickled, "cpu")
    except CheckpointError:
        raise
    except Exception as error:  # torch's reader raises whatever bytes that are not its own lead to
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error
    if not tensors:
        raise CheckpointError(f"{folder}: there are no weights; model.safetensors or pytorch_model.bin would work")
    return tensors


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, by name; no weights are read. Empty where there are none yet."""
    files, pickled = matching(folder, "*.safetensors"), _pickled(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for path in files:
            with safe_open(path, framework="pt") as opened:
                shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        if not files and pickled is not None:
            shapes = {name: tuple(tensor.shape) for name, tensor in _of_torch(pickled, "meta").items()}
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error
    return shapes


def _pickled(folder: Path) -> Path | None:
    return next((folder / name for name in PICKLED if is_file(folder / name)), None)


def _of_torch(path: Path, device: str) -> dict[str, Tensor]:
    tensors = torch.load(path, map_location=device, weights_only=True)
    if not isinstance(tensors, Mapping) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise CheckpointError(f"{path}: got no mapping of names to tensors")
    if strange := sorted(str(name) for name, tensor in tensors.items() if tensor.layout is not torch.strided):
        raise CheckpointError(f"{path}: the weights are sparse: {', '.join(strange)}")
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


def check_numbers(folder: Path, weights: Mapping[str, Tensor]) -> None:
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


def refuse(folder: Path, *, missing: Iterable[str] = (), extra: Iterable[str] = (), misshapen: Iterable[str] = ()) -> None:
    """Raise CheckpointError if there are any, with all of them."""
    lists = {"missing": sorted(missing), "superfluous": sorted(extra), "misshapen": sorted(misshapen)}
    faults = [f"{fault}: {', '.join(names)}" for fault, names in lists.items() if names]
    if faults:
        raise CheckpointError(f"{folder}: the weights do not fit config.json; {'; '.join(faults)}")


def assembled(folder: Path, head: HeadT, tensors: Mapping[str, Tensor], *, spelled: Callable[[str], str] = str) -> HeadT:
    """The head, made on the meta device, around these very tensors. Rotary frequencies stay in float32 whatever the dtype.

    spelled: a parameter's name as the file has it. Raises CheckpointError with all that is missing, superfluous or misshapen.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    misshapen = (
        f"{spelled(name)} {tuple(tensors[name].shape)}, expected {shape}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    )
    missing = map(spelled, wanted.keys() - tensors.keys())
    refuse(folder, missing=missing, extra=map(spelled, tensors.keys() - wanted.keys()), misshapen=misshapen)
    head.load_state_dict(dict(tensors), strict=True, assign=True)
    for module in head.modules():
        if isinstance(module, Attention | BlockHead):
            config = module.config
            frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
            module.frequencies = frequencies.to(next(module.parameters()).device)
    return head.eval().requires_grad_(False)


def draft_ids(folder: Path, config: VocabularyConfig, maps: Mapping[str, Tensor], *, published: bool) -> Tensor | None:
    """The target id of each column. Published heads store offsets (`d2t`: id = column + offset), ours the ids."""
    name = "d2t" if published else "draft_ids"
    strangers = maps.keys() - ({"d2t", "t2d"} if published else {"draft_ids"})
    reduced = config.draft_vocab_size is not None and (not published or config.draft_vocab_size != config.vocab_size)
    refuse(folder, missing={name} - maps.keys() if reduced else set(), extra=strangers)
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
