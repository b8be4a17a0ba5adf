"""Certificates: what `verify` found of one resolved spec, in a file that says whether it is whole and which spec it is of."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdec.config.resolved_spec import ResolvedSpec
from specdec.errors import SpecError
from specdec.files.atomic import write_whole
from specdec.files.paths import exists
from specdec.interfaces.consent import OPTION
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.interfaces.results import CertificateStamp

KIND: Literal["specdec certificate"] = "specdec certificate"
MOST_BYTES = 4 << 20
PROVED = 1e-12
"""The total variation that an exact proof leaves possible."""

UNHASHED = ("name", "source", "description", "allow_lossy", "max_tv")
"""Keys of a spec on which the distribution of its tokens does not depend."""

_Share = Annotated[float, Field(ge=0, le=1)]
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class LevelVerdict(BaseModel):
    """One level of proof as it was run. covered: (title, words) of what it rests on."""

    model_config = _STRICT

    level: str
    outcome: str
    words: str
    covered: tuple[tuple[str, str], ...] = ()


class Numerics(BaseModel):
    """How the target computed. target: its description; chat_template: hash of it; forward: the option, None: it has none."""

    model_config = _STRICT

    target: str
    vocab_size: int
    dtype: str
    device: str
    forward: str | None
    bitwise: bool
    revision: str | None
    chat_template: str | None


class MeasuredPrice(BaseModel):
    """Of a lossy rule: total variation a token with the half width of its interval over prompts, beside tau."""

    model_config = _STRICT

    tv: _Share
    tv_spread: float | None
    tv_upper_bound: _Share
    confidence: _Share
    tau: float
    tau_spread: float | None
    tokens: float
    steps: int
    prompts: int


class Certificate(BaseModel):
    """What was found of one resolved spec.

    spec: resolved, models and files by their names alone. files: by part and option, or part alone, the SHA-256 of each file.
    tv_at_most: of a token's distribution from the target's; 1 where nothing was proved or measured. sha256: of all the rest.
    """

    model_config = _STRICT

    kind: Literal["specdec certificate"]
    format: Literal[1]
    strategy: str
    guarantee: Guarantee
    spec: dict[str, Any]
    spec_sha256: str
    files: dict[str, dict[str, str]]
    numerics: Numerics
    levels: tuple[LevelVerdict, ...]
    measured: MeasuredPrice | None
    known_cases: dict[str, float]
    tv_at_most: _Share
    seed: int
    versions: dict[str, str | None]
    date: str
    sha256: str

    @classmethod
    def sealed(cls, **content: Any) -> Self:
        """With its kind, format and hash."""
        open_one = cls(kind=KIND, format=1, sha256="", **content)
        return open_one.model_copy(update={"sha256": open_one._digest()})

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The certificate in a file. Raises SpecError for one that is missing, damaged, edited, or something else."""
        try:
            with Path(path).open("rb") as file:
                data = json.loads(file.read(MOST_BYTES))
        except OSError as error:
            raise SpecError(f"certificate '{path}' cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise SpecError(f"certificate '{path}' is damaged: it is no whole JSON ({error})") from error
        if not isinstance(data, dict) or data.get("kind") != KIND:
            got = data.get("kind") if isinstance(data, dict) else type(data).__name__
            raise SpecError(f"'{path}' is no certificate: kind is {got!r}, not '{KIND}'")
        try:
            found = cls.model_validate_json(json.dumps(data))
        except (ValidationError, ValueError) as error:
            raise SpecError(f"certificate '{path}' is damaged: {_first_words(error)}") from error
        if found.sha256 != found._digest():
            raise SpecError(f"certificate '{path}' was changed after it was written: its content has another hash than sha256")
        if found.spec_sha256 != spec_hash(found.spec, found.guarantee):
            raise SpecError(f"certificate '{path}' contradicts itself: spec_sha256 is not the hash of its spec")
        return found

    def write(self, path: Path) -> None:
        """Write the file that `read` reads; it appears only when it is whole."""
        write_whole(path, self.model_dump_json(indent=2) + "\n")

    @property
    def lossless(self) -> bool:
        """Whether the rule claims to be lossless and the exact level proved it at every place of the tree."""
        return self.guarantee is Guarantee.LOSSLESS and self._proved("exact")

    @property
    def says_something(self) -> bool:
        """Whether anything that was run bears on the total variation: a measurement, the exact level, or a refutation."""
        ran = any(one.level == "exact" or one.outcome == "refuted" for one in self.levels)
        return self.measured is not None or ran

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.lossless:
            levels = ", ".join(one.level for one in self.levels if one.outcome == "proved")
            return f"lossless (proved: {levels})"
        if self.measured is not None:
            return f"lossy: total variation at most {self.tv_at_most:.3g} a token ({self.measured.confidence:.0%})"
        return f"{self.guarantee.value}: nothing is proved about its total variation"

    @property
    def stamp(self) -> CertificateStamp:
        """What answers carry of it."""
        return CertificateStamp(self.sha256, self.verdict, self.lossless, self.tv_at_most)

    def require_lossless(self, *levels: str) -> None:
        """Raise SpecError unless the strategy is lossless: by an exact proof, and by these levels where they are named."""
        if not self.lossless:
            raise SpecError(f"certificate of '{self.strategy}': {self.verdict}; a lossless strategy is required")
        if missing := [level for level in levels if not self._proved(level)]:
            raise SpecError(f"certificate of '{self.strategy}': not proved at level {', '.join(missing)}")

    def matches(self, spec: ResolvedSpec) -> bool:
        """Whether it is of this resolved spec; what the files hold is compared when a decoder is loaded."""
        return not self.differences(spec)

    def differences(self, spec: ResolvedSpec) -> list[str]:
        """By key, in what the spec is another than the one that was verified; a target that is given loaded is left out."""
        ours, theirs = (dict(_flat(hashed(one, self.guarantee))) for one in (portable(spec), self.spec))
        if Kind.TARGET not in spec.parts:
            theirs = {key: value for key, value in theirs.items() if not key.startswith("target.")}
        keys = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
        found = [f"{key}: {_shown(ours, key)}, certified was {_shown(theirs, key)}" for key in keys]
        if not found and (guarantee := spec.parts[Kind.VERIFIER].declares.guarantee) is not self.guarantee:
            found = [f"the verifier is {guarantee.value}, certified was {self.guarantee.value}"]
        return found

    def _proved(self, level: str) -> bool:
        return any(one.level == level and one.outcome == "proved" for one in self.levels)

    def _digest(self) -> str:
        content = self.model_dump(mode="json", exclude={"sha256"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def portable(resolved: ResolvedSpec) -> dict[str, Any]:
    """The resolved spec, with models and files that lie here by their names alone, and without what a machine consents to."""
    plain: dict[str, Any] = json.loads(json.dumps(_portable(resolved.plain())))
    return plain


def hashed(spec: Mapping[str, Any], guarantee: Guarantee) -> dict[str, Any]:
    """Of a portable spec, what its certificate is of. A lossless rule is so at any sampling, of which nothing is kept."""
    kept = {key: value for key, value in spec.items() if key not in UNHASHED}
    sampling = {} if guarantee is Guarantee.LOSSLESS else kept.pop("sampling", {})
    return {**kept, "sampling": {key: value for key, value in sampling.items() if key != "seed"}}


def spec_hash(spec: Mapping[str, Any], guarantee: Guarantee) -> str:
    """SHA-256 of `hashed`."""
    return hashlib.sha256(json.dumps(hashed(spec, guarantee), sort_keys=True).encode()).hexdigest()


def _portable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _portable(one) for key, one in value.items() if key != OPTION}
    if isinstance(value, list | tuple):
        return [_portable(one) for one in value]
    return Path(value).name if isinstance(value, str) and "/" in value and exists(Path(value)) else value


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _flat(one, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "unset"


def _first_words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0]
