"""Where certificates lie, what a spec with `max_tv` asks of them, and the files that they are of."""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specdec.config.certificate import Certificate, Numerics, portable, spec_hash
from specdec.config.resolved_spec import ResolvedPart, ResolvedSpec
from specdec.errors import SpecError
from specdec.files.paths import is_file, is_folder, matching
from specdec.heads.checkpoint_path import SHIPPED
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import Target
from specdec.interfaces.target_identity import target_name, template_hash
from specdec.targets.gguf_cache import cache_root, fingerprint, gguf_file
from specdec.targets.hub import HUB_ID, cached_folder

MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""Of a model's or head's folder."""

HUB_OPTIONS = ("model", "head")
"""Options whose values may be hub ids."""

PACKAGES = ("specdec", "torch", "transformers", "numpy", "scipy")


def unlimited(resolved: ResolvedSpec) -> ResolvedSpec:
    """The spec without `max_tv`: it may be run before it has a certificate, or once that was compared."""
    return replace(resolved, spec=resolved.spec.model_copy(update={"max_tv": None}))


def stored_at(resolved: ResolvedSpec) -> Path:
    """Where `verify` stores the certificate of a spec with `max_tv`, and where it is looked for: in specdec's cache folder."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", resolved.spec.name).strip("-")[:40] or "strategy"
    digest = spec_hash(portable(resolved), resolved.parts[Kind.VERIFIER].declares.guarantee)
    return cache_root() / "certificates" / f"{slug}-{digest[:16]}.json"


def required_certificate(resolved: ResolvedSpec, path: str | Path | None = None) -> Certificate | None:
    """The certificate under which a spec may be loaded: the one in `path`, or the stored one of a spec with `max_tv`.

    None: none was given, and none is needed. What the files hold is compared by `check_loaded`.

    Raises:
        SpecError: There is none where one is needed, it is of something else, or its upper bound is above `max_tv`.
    """
    limit = resolved.spec.max_tv
    if path is None and limit is None:
        return None
    place = Path(path) if path is not None else stored_at(resolved)
    if path is None and not is_file(place):
        given = "" if Kind.TARGET in resolved.parts else "; with a target that is already loaded, give certificate=FILE"
        raise SpecError(
            f"{resolved.label}: max_tv {limit:g} needs a certificate of this resolved spec, and there is none ({place}): "
            f"{_command(resolved)}{given}"
        )
    found = Certificate.read(place)
    if others := found.differences(resolved):
        raise SpecError(f"{resolved.label}: certificate '{place}' is of another spec: {'; '.join(others[:4])}")
    if limit is not None and found.tv_at_most > limit:
        raise SpecError(
            f"{resolved.label}: max_tv is {limit:g}, and by certificate '{place}' the total variation a token may be up to "
            f"{found.tv_at_most:.3g}; a stricter rule would do, or a longer measurement by --budget: {_command(resolved)}"
        )
    if (now := installed()["specdec"]) != found.versions.get("specdec"):
        raise SpecError(
            f"{resolved.label}: certificate '{place}' was made by specdec {found.versions.get('specdec')}, not {now}: "
            f"{_command(resolved)}"
        )
    return found


def check_loaded(certificate: Certificate, resolved: ResolvedSpec, target: Target) -> None:
    """Raise SpecError unless the target computes as it did, and the files of models, heads and trees hold what they held."""
    theirs, ours = certificate.numerics, numerics(resolved, target)
    names = ("vocab_size", "dtype", "forward", "bitwise", "revision", "chat_template")
    others = [name for name in names if getattr(theirs, name) != getattr(ours, name)]
    if Kind.TARGET not in resolved.parts:
        others = [name for name in (*others, *_other_target(theirs, ours)) if name != "forward"]
    found = [f"the target's {name} is {getattr(ours, name)!r}, certified was {getattr(theirs, name)!r}" for name in others]
    files = model_files(resolved)
    for key in {**certificate.files, **files}:
        if key.split(".")[0] == Kind.TARGET.value and Kind.TARGET not in resolved.parts:
            continue
        found += _other_files(key, files.get(key, {}), certificate.files.get(key, {}))
    if found:
        raise SpecError(f"{resolved.label}: what was certified is not what was loaded: {'; '.join(found[:4])}")


def numerics(resolved: ResolvedSpec, target: Target) -> Numerics:
    """How a loaded target computes."""
    facts, codec, part = target.facts, target.codec, resolved.parts.get(Kind.TARGET)
    options = {} if part is None else part.options.model_dump(mode="json")
    return Numerics(
        target=Path(target_name(facts.description)).name,
        vocab_size=facts.vocab_size,
        dtype=str(facts.dtype).removeprefix("torch."),
        device=str(facts.device),
        forward=options.get("forward"),
        bitwise=facts.bitwise,
        revision=facts.revision,
        chat_template=template_hash(None if codec is None else codec.chat_template),
    )


def model_files(resolved: ResolvedSpec) -> dict[str, dict[str, str]]:
    """By part and option, the SHA-256 of each file that a spec's parts read, as far as they are here.

    The embedded model is known by the fingerprint of its package; a part of somebody else's package by the module of its class.
    """
    return {key: found for part_key, part in _parts(resolved) for key, found in _files_of(part_key, part) if found}


def installed() -> dict[str, str | None]:
    """Versions of the packages that matter to a proof; None: not installed as a package."""
    return {name: _version(name) for name in PACKAGES}


def _parts(resolved: ResolvedSpec) -> Iterator[tuple[str, ResolvedPart]]:
    for kind, part in resolved.parts.items():
        yield kind.value, part
    for option, part in resolved.nested.items():
        yield f"{Kind.DRAFTER.value}.{option}", part
    for number, part in enumerate(resolved.drafters):
        yield f"{Kind.DRAFTER.value}.parts.{number}", part


def _files_of(key: str, part: ResolvedPart) -> Iterator[tuple[str, dict[str, str]]]:
    if part.kind is Kind.TARGET and part.name == "builtin":
        yield key, {gguf_file().name: fingerprint(gguf_file())}
    if (code := _own_code(part)) is not None:
        yield f"{key}.code", {code.name: _hash(code)}
    options = part.options.model_dump(mode="json")
    for option, value in options.items():
        if not isinstance(value, str) or not value:
            continue
        if is_file(Path(value)):
            yield f"{key}.{option}", {Path(value).name: _hash(Path(value))}
        elif (folder := _folder(part, option, value, options.get("revision"))) is not None:
            files = {path.name: path for pattern in MODEL_FILES for path in matching(folder, pattern) if is_file(path)}
            yield f"{key}.{option}", {name: _hash(files[name]) for name in sorted(files)}


def _own_code(part: ResolvedPart) -> Path | None:
    """The module of a class that is not specdec's, whose version says nothing of it; None where it is in no file."""
    if part.cls.__module__.partition(".")[0] == "specdec":
        return None
    found = getattr(sys.modules.get(part.cls.__module__), "__file__", None)
    return Path(found) if found is not None and is_file(Path(found)) else None


def _folder(part: ResolvedPart, option: str, value: str, revision: str | None) -> Path | None:
    """The folder that an option names: here, of the package, or in the hub's local cache."""
    if option not in HUB_OPTIONS:
        return None
    if value == "builtin":
        return SHIPPED / part.name
    if is_folder(Path(value)):
        return Path(value)
    return cached_folder(value, revision) if HUB_ID.fullmatch(value) else None


def _other_target(theirs: Numerics, ours: Numerics) -> list[str]:
    return [] if theirs.target == ours.target else ["target"]


def _other_files(key: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What is different, a file by its name."""
    names = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    words = {True: "has other contents", False: "is missing"}
    return [f"{key}: {name} {words[name in ours] if name in theirs else 'is new'}" for name in names]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _command(resolved: ResolvedSpec) -> str:
    """What makes a certificate."""
    return f"`specdec verify {resolved.label}` with the same settings makes one"
