"""The trained head on disk: config.json and model.safetensors in bfloat16."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.training.validation import Borrowed


def save_head(folder: Path, head: EagleHead | EagleHead3, borrowed: Borrowed) -> None:
    """Weights by their published names, `draft_ids` [drafts] int64 where the vocabulary is reduced; embeddings are left out.

    Each file is whole whenever it is there, and the weights come last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in head.state_dict().items()}
    if borrowed.draft_ids is not None:
        tensors["draft_ids"] = borrowed.draft_ids.to(torch.int64)
    weights, config = folder / "model.partial", folder / "config.partial"
    save_file(tensors, weights, metadata={"format": "pt"})
    config.write_text(head.config.model_dump_json(indent=2))
    config.rename(folder / "config.json")
    weights.rename(folder / "model.safetensors")
