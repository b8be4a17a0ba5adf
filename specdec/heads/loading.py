"""From the options of a drafter to a head that is ready for a target."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from specdec.errors import CheckpointError, SpecdecWarning, TargetMismatch
from specdec.files.paths import ModelFolder
from specdec.heads.architectures import AnyConfig, Kind
from specdec.heads.checkpoint_path import locate_head
from specdec.heads.config import TrainedWith
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.heads.formats.config_file import ConfigFile, head_config, read_config
from specdec.heads.formats.reading import read_head
from specdec.heads.fused_head import FusedHead
from specdec.heads.session import DraftingHead
from specdec.heads.shared_weights import embeddings, lm_head_of
from specdec.interfaces.compatibility import size_fault, warn_of_few_positions
from specdec.interfaces.parts import PartOptions, Target
from specdec.interfaces.target_identity import same_target, target_name, template_hash
from specdec.nn.placement import DTYPES, resolve_device


class HeadOptions(PartOptions):
    """Which head, and how it is run. Its config.json is read once, when it is declared or built."""

    kind: ClassVar[Kind]

    head: Annotated[
        ModelFolder, Field(description="a folder with a head's config.json, a hub id, or 'builtin' for the shipped head")
    ]
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"] | None, Field(description="of the head; unset: the target's")
    ] = None
    device: Annotated[str | None, Field(description="of the head: cpu, cuda, ...; unset: the target's")] = None
    revision: Annotated[str | None, Field(description="branch, tag or commit of a hub repository")] = None

    @cached_property
    def config_file(self) -> ConfigFile | None:
        """The config.json within reach; None for a hub id that is not in the local cache. Raises CheckpointError."""
        folder = locate_head(self.head, self.kind, revision=self.revision, download=False)
        return None if folder is None else read_config(folder)


def declared_config(options: HeadOptions, layers: tuple[int, ...] | None = None) -> AnyConfig | None:
    """What config.json says; None for a hub id that is not in the local cache. Raises CheckpointError."""
    return None if options.config_file is None else _config(options.config_file, options.kind, layers)


def made_for(config: AnyConfig | None) -> tuple[tuple[int, int], ...]:
    """The sizes of the head's target, as a drafter declares them."""
    return () if config is None else (config.made_for,)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedHead:
    """A head of this dtype on this device, which fits its target. folder: where it is from; None: it was made by hand."""

    checkpoint: HeadCheckpoint
    target: Target
    dtype: torch.dtype
    device: torch.device
    folder: Path | None = None


def load_checkpoint(options: HeadOptions, target: Target | None, layers: tuple[int, ...] | None = None) -> LoadedHead:
    """The head's files. Raises CheckpointError for them, TargetMismatch for a target that does not fit."""
    if target is None:
        raise TargetMismatch(f"drafter '{options.kind}' is built after its target, and there is none")
    folder = locate_head(options.head, options.kind, revision=options.revision, download=True)
    if folder is None:
        raise CheckpointError(f"'{options.head}' is neither a folder nor a hub repository within reach")
    known = options.config_file
    file = known if known is not None and known.folder == folder else read_config(folder)
    config = _config(file, options.kind, layers)
    check_fit(config, target)
    warn_of_few_positions("the head", config.max_positions, target.facts.max_positions, "was not made for what follows")
    dtype = target.facts.dtype if options.dtype is None else DTYPES[options.dtype]
    device = target.facts.device if options.device is None else resolve_device(options.device)
    checkpoint = read_head(folder, config_file=file, layers=layers, dtype=dtype, device=device)
    warn_of_others(checkpoint.config.trained_with, target, folder)
    return LoadedHead(checkpoint, target, dtype, device, folder)


def load_head(options: HeadOptions, target: Target | None, layers: tuple[int, ...] | None = None) -> DraftingHead:
    """An EAGLE head with what it shares. Errors as of `load_checkpoint`."""
    loaded = load_checkpoint(options, target, layers)
    return ready(loaded.checkpoint, loaded.target, dtype=loaded.dtype, device=loaded.device, folder=loaded.folder)


def ready(
    checkpoint: HeadCheckpoint, target: Target, *, dtype: torch.dtype, device: torch.device, folder: Path | None = None
) -> DraftingHead:
    """An EAGLE head of this dtype and device that fits the target (`check_fit`), laid out for drafting, with what it shares.

    folder: where it is from.
    """
    if not isinstance(checkpoint.head, EagleHead | EagleHead3):
        raise CheckpointError(f"the head is of kind '{checkpoint.config.kind}'; drafter '{checkpoint.config.kind}' would work")
    return DraftingHead(
        head=FusedHead(checkpoint.head),
        embed=embeddings(checkpoint, target, dtype, device),
        lm_head=lm_head_of(checkpoint, target, device),
        target_ids=checkpoint.draft_ids,
        dtype=dtype,
        device=device,
        name=name_of(folder),
    )


def name_of(folder: Path | None) -> str:
    """What messages call a head from this folder."""
    return "the head" if folder is None else f"the head in {folder}"


def warn_of_others(trained_with: TrainedWith | None, target: Target, folder: Path) -> None:
    """A SpecdecWarning for a head that was trained with another target, revision or chat template; both are named."""
    if trained_with is None:
        return
    facts, codec = target.facts, target.codec
    name = target_name(facts.description)
    moved = Path(name).name == Path(trained_with.target).name
    pairs = [
        ("target", trained_with.target, trained_with.target if moved or same_target(trained_with.target, name) else name),
        ("revision", trained_with.revision, facts.revision),
        ("chat template", trained_with.chat_template, template_hash(None if codec is None else codec.chat_template)),
    ]
    others = [f"{what} {old}, not {new}" for what, old, new in pairs if None not in (old, new) and old != new]
    if others:
        message = f"the head in {folder} was trained with {', and with '.join(others)}: fewer of its drafts may be accepted"
        warnings.warn(message, SpecdecWarning, stacklevel=2)


def check_fit(config: AnyConfig, target: Target) -> None:
    """Raise TargetMismatch unless the target gives what the head reads, in the width that it reads."""
    facts = target.facts
    if facts.hidden_size is None:
        raise TargetMismatch(f"the head reads hidden states, and {facts.description} has none")
    if (fault := size_fault(config.made_for, facts.hidden_size, facts.vocab_size, facts.description)) is not None:
        raise TargetMismatch(f"the head {fault}")
    if not config.own_lm_head and config.hidden_size != facts.hidden_size:
        raise TargetMismatch(f"the target's LM head reads {facts.hidden_size} numbers; the head predicts {config.hidden_size}")
    count = facts.num_layers
    wrong = [layer for layer in config.layers if count is None or not 0 <= layer <= count]
    if wrong or len(set(config.layers)) != len(config.layers):
        raise TargetMismatch(
            f"the head fuses the inputs of layers {list(config.layers)}; they must be different and, "
            f"for a target of {count} layers, between 0 and {count}"
        )


def _config(file: ConfigFile, kind: Kind, layers: tuple[int, ...] | None) -> AnyConfig:
    if kind == "eagle" and file.fuses_layers:
        raise CheckpointError(f"{file.folder}: the head is of kind 'eagle3'; drafter 'eagle3' would work")
    config = head_config(file, layers)
    if config.kind != kind:
        raise CheckpointError(f"{file.folder}: the head is of kind '{config.kind}'; drafter '{config.kind}' would work")
    return config
