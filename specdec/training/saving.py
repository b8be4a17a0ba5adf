"""The trained head on disk: config.json and model.safetensors in bfloat16."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from specdec.files.atomic import whole_file, write_whole
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.training.validation import Borrowed


def save_head(folder: Path, head: EagleHead | EagleHead3, borrowed: Borrowed) -> None:
    """Weights by their published names, `draft_ids` [drafts] int64 where the vocabulary is reduced; embeddings are left out.

    Each file is whole whenever it is there, and the weights come last.
    """
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in head.state_dict().items()}
    if borrowed.draft_ids is not None:
        tensors["draft_ids"] = borrowed.draft_ids.to(torch.int64)
    with whole_file(folder / "model.safetensors") as weights:
        save_file(tensors, weights, metadata={"format": "pt"})
        write_whole(folder / "config.json", head.config.model_dump_json(indent=2))
