"""Any causal language model of transformers, from a local folder or a hub id."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specdec.files.paths import ModelFolder
from specdec.interfaces.consent import Consent
from specdec.interfaces.declarations import TargetDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions
from specdec.targets.assembly import BITWISE, RunSettings, assemble
from specdec.targets.bitwise_loading import no_bitwise_because
from specdec.targets.capability import declaration
from specdec.targets.fusing import FORWARD, ForwardKind
from specdec.targets.loading import load_model, load_tokenizer
from specdec.targets.model_config import declared_config
from specdec.targets.text_codec import TokenizerCodec
from specdec.targets.transformers_target import TransformersTarget

MAX_CONTEXT = (
    "cap on the context, in tokens; where rotary positions are scaled by 'linear', also a lift, up to the stretched length"
)


class HuggingFaceOptions(PartOptions):
    """Which model, and how it is run."""

    model: Annotated[ModelFolder, Field(description="a folder with a config.json, or a hub id")]
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"] | None, Field(description="unset: the checkpoint's")
    ] = None
    device: Annotated[str, Field(description="cpu, cuda, cuda:1, ...; auto: a GPU if there is one")] = "auto"
    attention: Annotated[str, Field(description="sdpa or eager; others take no tree mask")] = "sdpa"
    device_map: Annotated[str | None, Field(description="accelerate's, to spread a model over devices")] = None
    revision: Annotated[str | None, Field(description="branch, tag or commit of a hub repository")] = None
    trust_remote_code: Consent = False
    prefill_chunk: Annotated[int, Field(ge=1, description="prompt tokens per forward")] = 512
    max_context: Annotated[int | None, Field(ge=1, description=MAX_CONTEXT)] = None
    probe: Annotated[bool, Field(description="at load, compare a small tree with its paths")] = True
    forward: Annotated[ForwardKind, Field(description=FORWARD)] = "auto"
    bitwise: Annotated[bool, Field(description=BITWISE)] = False


class HuggingFaceTarget(TransformersTarget[HuggingFaceOptions]):
    """An unmodified transformers model that scores draft trees."""

    name: ClassVar[str] = "huggingface"
    Options: ClassVar[type[PartOptions]] = HuggingFaceOptions

    @classmethod
    def declares(cls, options: HuggingFaceOptions) -> TargetDeclaration:
        """Reads config.json as data from the folder or from the hub's local cache; knows nothing of models in neither."""
        config = declared_config(options.model, revision=options.revision, trusted=options.trust_remote_code)
        if config is None:
            return TargetDeclaration()
        refused = no_bitwise_because(config) if options.bitwise else None
        return declaration(config, attention=options.attention, max_context=options.max_context, refused_because=refused)

    @classmethod
    def build(cls, options: HuggingFaceOptions, tools: BuildTools) -> "HuggingFaceTarget":
        model = load_model(
            options.model,
            dtype=options.dtype,
            device=options.device,
            attention=options.attention,
            device_map=options.device_map,
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
        )
        tokenizer = load_tokenizer(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
        codec = None if tokenizer is None else TokenizerCodec(tokenizer)
        settings = RunSettings(
            options.prefill_chunk, options.max_context, options.probe, options.bitwise, options.forward, codec
        )
        return cls(assemble(model, settings, options.model, tokenizer), codec)
