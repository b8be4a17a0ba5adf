"""What a head's folder holds, in numbers and words: for people, and for programs that choose among heads."""

from dataclasses import dataclass
from pathlib import Path

from specdec.files.paths import is_file, matching
from specdec.heads.architectures import AnyConfig, Kind
from specdec.heads.checkpoint_path import PICKLED
from specdec.heads.config import HeadConfig
from specdec.heads.formats.config_file import head_config, read_config
from specdec.heads.formats.layouts import Layout, layout_of
from specdec.heads.formats.reading import read_head
from specdec.heads.hydra import HydraConfig


@dataclass(frozen=True, slots=True)
class HeadSummary:
    """A head that has been read without fault.

    parameters: of the head itself, LM heads of its own included. megabytes: of its files. dtype: of its weights. embedding,
    lm_head: whether the files hold them; else they are the target's.
    """

    folder: Path
    kind: Kind
    layout: Layout
    config: AnyConfig
    parameters: int
    megabytes: float
    dtype: str
    embedding: bool
    lm_head: bool

    @property
    def sizes(self) -> dict[str, object]:
        """The head's sizes and switches, without what is of no use to it."""
        config = self.config
        hidden = {"trained_with", "kind", "vocab_size", "hidden_size", "target_hidden_size", "own_lm_head", "prefix"}
        found = {key: value for key, value in config.model_dump(mode="json").items() if key not in hidden and value is not None}
        if isinstance(config, HeadConfig) and not config.layers:
            del found["layers"], found["norm_before_residual"]
        if isinstance(config, HydraConfig) and config.prefix is not None:
            layer = config.prefix.model_dump(mode="json", exclude_none=True, exclude={"hidden_size"})
            found |= {f"prefix.{key}": value for key, value in layer.items()}
        return {"hidden_size": config.hidden_size, **found}


def summarize(folder: Path, layers: tuple[int, ...] | None = None) -> HeadSummary:
    """What a folder holds. layers: of an EAGLE-3 head whose config.json does not name them.

    Raises CheckpointError with all that is missing, superfluous or misshapen.
    """
    file = read_config(folder)
    config = head_config(file, layers)
    read = read_head(folder, config_file=file, layers=layers)
    weights = list(read.head.parameters())
    files = [*matching(folder, "*.safetensors"), *(folder / name for name in PICKLED if is_file(folder / name))]
    return HeadSummary(
        folder=folder,
        kind=config.kind,
        layout=layout_of(file),
        config=config,
        parameters=sum(parameter.numel() for parameter in weights),
        megabytes=sum(path.stat().st_size for path in files) / 1e6,
        dtype=", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in weights})),
        embedding=read.embedding is not None,
        lm_head=config.own_lm_head or read.lm_head is not None,
    )
