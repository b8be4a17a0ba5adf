"""Where names become objects: a spec is checked in shape, names and fit, then built into a decoder."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from specdec.config.catalog import load_catalog
from specdec.config.certification import check_loaded, required_certificate
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedPart, ResolvedSpec
from specdec.config.resolver import built, read
from specdec.config.resolver import check as checked
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError, TargetMismatch
from specdec.files.paths import exists
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import BuildTools, Drafter, Target
from specdec.plugins.registry import Registry


def load(
    source: str | Path | Mapping[str, Any],
    *,
    target: str | Path | Mapping[str, Any] | Target | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),  # noqa: A002 - the command line's --set
    parts: Iterable[type[Any]] = (),
    trust_remote_code: bool | None = None,
    certificate: str | Path | None = None,
    **overrides: Any,
) -> Decoder:
    """The decoder of a shipped strategy, a .yaml file or a mapping.

    Args:
        source: A strategy's name, a path to a .yaml file, or a mapping with the keys of one.
        target: A folder or hub id of a Hugging Face model, a target part as a mapping, or one that is already loaded.
        set: `a.b=value` texts, or {dotted key: value}.
        parts: Part classes that the spec may name beside the registered ones: `parts=[MyVerifier]`.
        trust_remote_code: Run the code that models bring; None: what SPECDEC_TRUST_REMOTE_CODE says. A spec cannot consent.
        certificate: A file of `specdec verify --certificate`, which must be of what is loaded; None: only a spec with `max_tv`
            needs one, which is looked for where `specdec verify` stores it.
        overrides: Top-level keys, such as sampling={"temperature": 1.0}.

    Raises:
        SpecError: For every mistake at once; where a certificate is missing, of something else, or above `max_tv`.
        IncompatibleParts: Where the parts would not be lossless together.
        TargetMismatch: Where the model cannot do it.
    """
    catalog = load_catalog(parts=parts, trust_remote_code=trust_remote_code)
    given = target if isinstance(target, Target) else None
    return build(_checked(source, catalog, target, set, overrides), catalog, target=given, certificate=certificate)


def check(
    source: str | Path | Mapping[str, Any],
    *,
    target: str | Path | Mapping[str, Any] | Target | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),  # noqa: A002 - the command line's --set
    parts: Iterable[type[Any]] = (),
    trust_remote_code: bool | None = None,
    **overrides: Any,
) -> ResolvedSpec:
    """Shape, names and fit of what `load` would build, without weights. Arguments and errors are those of `load`.

    No code that a model brings is run, whatever `trust_remote_code` says: that only tells whether such a model is refused.
    """
    return _checked(source, load_catalog(parts=parts, trust_remote_code=trust_remote_code), target, set, overrides)


def _checked(
    source: str | Path | Mapping[str, Any],
    catalog: Catalog,
    target: str | Path | Mapping[str, Any] | Target | None,
    given: Mapping[str, Any] | Sequence[str],
    overrides: Mapping[str, Any],
) -> ResolvedSpec:
    loaded = target if isinstance(target, Target) else None
    replaced = {} if target is None or isinstance(target, Target) else target_override(target, catalog.registry)
    dotted, settings = _settings(given)
    reading = read(source, catalog, settings=settings, overrides={**replaced, **dotted, **overrides})
    return checked(reading, catalog, target=loaded)


def _settings(given: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What `set` gives by key, and as texts. Raises SpecError for anything else."""
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return dict(given), ()
    texts = (given,) if isinstance(given, str) else given
    if isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts):
        return {}, tuple(texts)
    raise SpecError(f"set: got {given!r}; expected {{'tree.nodes': 24}}, or a list of texts such as 'tree.nodes=24'")


def resolve(
    source: str | Path | Mapping[str, Any],
    catalog: Catalog,
    *,
    settings: Sequence[str] | None = None,
    target: str | Path | Mapping[str, Any] | None = None,
) -> ResolvedSpec:
    """The resolved spec of a strategy, as a command line gives it. Raises SpecError or IncompatibleParts.

    settings: `a.b=value` texts. target: in place of the spec's own, as `load` takes it.
    """
    override = {} if target is None else target_override(target, catalog.registry)
    return checked(read(source, catalog, settings=settings or (), overrides=override), catalog)


def target_override(target: str | Path | Mapping[str, Any], registry: Registry) -> dict[str, Any]:
    """The override that puts a target into a spec: a registered name, a folder or hub id, or a part."""
    if isinstance(target, Mapping):
        return {"target": dict(target)}
    if not isinstance(target, str | Path):
        raise SpecError(
            f"target: got a {type(target).__name__} object; expected a folder or hub id, a part such as "
            "{'use': 'huggingface', 'model': FOLDER}, or a loaded Target of specdec; a model of transformers would work from "
            "the folder that its save_pretrained writes (its tokenizer's too)"
        )
    text = str(target)
    if text in registry.parts[Kind.TARGET] and not exists(Path(text)):
        return {"target": {"use": text}}
    return {"target": {"use": "huggingface", "model": text}}


def build(
    resolved: ResolvedSpec,
    catalog: Catalog,
    *,
    target: Target | None = None,
    models: Mapping[str, Target] | None = None,
    certificate: str | Path | None = None,
) -> Decoder:
    """Load the target and the drafter's models, unless they are given (`models`, by option), and compose the decoder.

    certificate: a file, as for `load`. Raises SpecError where it, or that of a spec with `max_tv`, is not of what is loaded.
    """
    certified = required_certificate(resolved, certificate)
    first = BuildTools(find_tree=resolved.find_tree, sampling_seed=resolved.spec.sampling.seed)
    given = models or {}
    with _of_a_template(resolved):
        main = target if target is not None else built(resolved.parts[Kind.TARGET], first)
        nested = {option: given[option] if option in given else built(part, first) for option, part in resolved.nested.items()}
    tools = BuildTools(main, nested, resolved.find_tree, resolved.spec.sampling.seed)
    tools = replace(tools, drafters=tuple(_asked(number, part, tools) for number, part in enumerate(resolved.drafters)))
    if certified is not None:
        check_loaded(certified, resolved, main)
    drafter, tree, verifier = (resolved.parts[kind] for kind in (Kind.DRAFTER, Kind.TREE, Kind.VERIFIER))
    return Decoder(
        main,
        built(drafter, tools),
        built(tree, tools),
        built(verifier, tools),
        sampling=resolved.spec.sampling,
        name=resolved.spec.name,
        on_step=catalog.registry.step_observer(),
        certificate=None if certified is None else certified.stamp,
    )


@contextmanager
def _of_a_template(resolved: ResolvedSpec) -> Iterator[None]:
    """A model that cannot be loaded is reported as one that a template leaves open, where the spec is a template."""
    try:
        yield
    except TargetMismatch as error:
        if resolved.template is None:
            raise
        raise TargetMismatch(f"{error}\n  {resolved.template}") from error


def _asked(number: int, part: ResolvedPart, tools: BuildTools) -> Drafter:
    """A drafter that the spec's own one asks, with the models that it declared itself."""
    at = f"parts.{number}."
    own = {option.removeprefix(at): model for option, model in tools.targets.items() if option.startswith(at)}
    made: Drafter = built(part, replace(tools, targets=own))
    return made
