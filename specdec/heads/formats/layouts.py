"""All layouts of heads by their names, and a head written in any of them."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from specdec.errors import CheckpointError, TargetMismatch
from specdec.heads.architectures import Kind
from specdec.heads.config import HeadConfig
from specdec.heads.formats.checkpoint import EMBEDDING, LM_HEAD, HeadCheckpoint, tensors_of, write_folder
from specdec.heads.formats.config_file import ConfigFile
from specdec.heads.formats.dflash import write_dflash
from specdec.heads.formats.eagle import write_eagle
from specdec.heads.formats.hydra import write_hydra
from specdec.heads.formats.medusa import is_vllm, write_authors_medusa, write_vllm_medusa
from specdec.heads.formats.speculators import write_speculators
from specdec.heads.shared_weights import shared_rows
from specdec.interfaces.parts import Target
from specdec.interfaces.target_identity import target_name


class Layout(StrEnum):
    """Whose layout a folder is in."""

    SPECDEC = "specdec"
    EAGLE = "eagle"
    SPECULATORS = "speculators"
    MEDUSA = "medusa"
    VLLM_MEDUSA = "vllm-medusa"
    HYDRA = "hydra"
    DFLASH = "dflash"


PUBLISHED: Mapping[Kind, Layout] = MappingProxyType(
    {
        "eagle": Layout.EAGLE,
        "eagle3": Layout.SPECULATORS,
        "medusa": Layout.MEDUSA,
        "hydra": Layout.HYDRA,
        "block": Layout.DFLASH,
    }
)
"""By kind of head, the layout that others read."""


def layout_of(file: ConfigFile) -> Layout:
    """The layout of a folder, by its config.json."""
    if not file.is_published:
        return Layout.SPECDEC
    if file.family == "medusa":
        return Layout.VLLM_MEDUSA if is_vllm(file.data) else Layout.MEDUSA
    if file.family == "hydra":
        return Layout.HYDRA
    if file.family == "block":
        return Layout.DFLASH
    return Layout.SPECULATORS if "speculators_model_type" in file.data else Layout.EAGLE


def needs_target(checkpoint: HeadCheckpoint, layout: Layout) -> bool:
    """Whether the layout writes out what the head borrows from its target."""
    config = checkpoint.config
    if layout in (Layout.MEDUSA, Layout.VLLM_MEDUSA, Layout.HYDRA):
        return not config.own_lm_head and checkpoint.lm_head is None
    scales = isinstance(config, HeadConfig) and config.embedding_scale != 1.0
    return layout is Layout.SPECULATORS and scales and checkpoint.embedding is None


def write_head(
    folder: Path,
    checkpoint: HeadCheckpoint,
    layout: Layout,
    *,
    target: Target | None = None,
    made_for: str | None = None,
    max_positions: int | None = None,
) -> None:
    """A head in this layout.

    Args:
        folder: Where config.json and the weights are written.
        checkpoint: The head.
        layout: Whose layout.
        target: The loaded target, where `needs_target`.
        made_for: Path or hub id of the target, for layouts that name it; None: what the head or the target says.
        max_positions: Of the head, where its config does not say; None: the target's.

    Raises:
        CheckpointError: For a head that the layout cannot express, or for what is not known.
        TargetMismatch: For a target whose LM head is not a matrix without a bias.
    """
    if needs_target(checkpoint, layout) and target is None:
        raise CheckpointError(f"layout '{layout}' writes out what the head borrows from its target: give the target")
    lender = target if needs_target(checkpoint, layout) else None
    if layout is Layout.SPECDEC:
        write_own(folder, checkpoint)
    elif layout in (Layout.EAGLE, Layout.DFLASH):
        write = write_eagle if layout is Layout.EAGLE else write_dflash
        write(folder, checkpoint, max_positions=_positions(checkpoint, target, max_positions))
    elif layout is Layout.SPECULATORS:
        positions, named = _positions(checkpoint, target, max_positions), _named(checkpoint, target, made_for)
        write_speculators(folder, checkpoint, target=named, max_positions=positions, embedding=_embedding(lender))
    elif layout is Layout.VLLM_MEDUSA:
        write_vllm_medusa(folder, checkpoint, lm_head=_lm_head(lender))
    else:
        write_published = write_hydra if layout is Layout.HYDRA else write_authors_medusa
        write_published(folder, checkpoint, target=_named(checkpoint, target, made_for), lm_head=_lm_head(lender))


def write_own(folder: Path, checkpoint: HeadCheckpoint) -> None:
    """A head in our own layout, with all that it brings."""
    tensors = tensors_of(checkpoint)
    if checkpoint.draft_ids is not None:
        tensors["draft_ids"] = checkpoint.draft_ids.cpu().to(torch.int64)
    if checkpoint.embedding is not None:
        tensors[EMBEDDING] = checkpoint.embedding
    if checkpoint.lm_head is not None and not checkpoint.config.own_lm_head:
        tensors[LM_HEAD] = checkpoint.lm_head
    config = checkpoint.config.model_dump(mode="json")
    if checkpoint.draft_ids is None:
        config["draft_vocab_size"] = None
    write_folder(folder, config, tensors)


def _positions(checkpoint: HeadCheckpoint, target: Target | None, given: int | None) -> int:
    of_target = None if target is None else target.facts.max_positions
    found = given or checkpoint.config.max_positions or of_target
    if found is None:
        raise CheckpointError("the layout names the positions that a head was made for, and they are not known: give them")
    return found


def _named(checkpoint: HeadCheckpoint, target: Target | None, given: str | None) -> str:
    trained_with = checkpoint.config.trained_with
    named = given or (None if trained_with is None else trained_with.target)
    if named is None and target is not None:
        named = target_name(target.facts.description)
    if named is None:
        raise CheckpointError("the layout names the target that a head was made for, and it is not known: give the target")
    return named


def _embedding(target: Target | None) -> Tensor | None:
    if target is None:
        return None
    return target.embed(torch.arange(target.facts.vocab_size, device=target.facts.device)).cpu()


def _lm_head(target: Target | None) -> Tensor | None:
    """[vocab, hidden]. Raises TargetMismatch where the LM head is none of rows alone."""
    if target is None:
        return None
    found = shared_rows(target, torch.arange(target.facts.vocab_size, device=target.facts.device))
    if found is None or found[1] is not None:
        raise TargetMismatch("the target's LM head is no matrix without a bias, so that the layout cannot hold it")
    return found[0].cpu()
