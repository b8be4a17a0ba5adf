"""Who takes part: strategies on one target, plain decoding on the same, and transformers' own ways; models are shared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdec.bench.baselines import (
    ASSISTED,
    GENERATE,
    LOOKUP,
    Peer,
    peer_contender,
    peer_of,
    reference_model,
    runs_on_transformers,
)
from specdec.bench.certificates import certified, check_all
from specdec.bench.contender import Contender, Task, Timed, run_task
from specdec.bench.engines import Engines
from specdec.bench.measurements import PLAIN
from specdec.compose import build, target_override
from specdec.config.certification import unlimited
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedPart, ResolvedSpec
from specdec.config.resolver import built, check, read
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import BuildTools, Target
from specdec.sampling.params import SamplingParams

PLAIN_PARTS = {"drafter": {"use": "none"}, "tree": {"use": "chain"}, "verifier": {"use": "match"}}

SHARED = frozenset({"temperature", "top_k", "top_p", "min_p", "seed", "draft"})
"""Sampling keys that a spec may set: the benchmark's settings replace them (`draft` stays): all decode one distribution."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for. peers: None for those that fit; assistant: a draft model's folder or hub id.

    engines: of others, which answer by themselves.
    """

    strategies: Sequence[str]
    settings: Sequence[str] = ()
    target: str | None = None
    peers: Sequence[str] | None = None
    assistant: str | None = None
    engines: Engines | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Contenders with their models in memory; they share `target`."""

    target: Target
    contenders: tuple[Contender, ...]


@dataclass(slots=True)
class Models:
    """Loaded targets by what they were loaded from."""

    loaded: dict[str, Target] = field(default_factory=dict)

    def of(self, part: ResolvedPart, tools: BuildTools) -> Target:
        """The model of this part, loaded when it is first asked for."""
        if (key := identity(part)) not in self.loaded:
            self.loaded[key] = built(part, tools)
        return self.loaded[key]


def identity(part: ResolvedPart) -> str:
    """The same for parts that load the same thing."""
    return json.dumps([part.name, part.options.model_dump(mode="json")], sort_keys=True)


class Lineup:
    """The contenders of a choice, checked before a weight is read. Raises SpecError and IncompatibleParts at once."""

    def __init__(
        self, choice: Choice, catalog: Catalog, dtypes: Sequence[str] = (), samplings: Sequence[SamplingParams] = ()
    ) -> None:
        if not choice.strategies:
            raise SpecError("nothing to compare: name at least one strategy")
        self._choice = choice
        self._engines = choice.engines or Engines()
        self._catalog = catalog
        self._plans = self._checked(None)
        in_dtypes: dict[str | None, dict[str, ResolvedSpec]] = {dtype: self._checked(dtype) for dtype in dtypes}
        self._certified = [
            one for dtype, specs in (in_dtypes or {None: self._plans}).items() for one in certified(specs, dtype, samplings)
        ]
        target = self._target(self._plans)
        self._assistant = self._assistant_part(target)
        self._peers = self._chosen_peers(target)

    @property
    def names(self) -> list[str]:
        """Plain decoding, the strategies, the peers, then engines of others."""
        return [*self._plans, *(peer.name for peer in self._peers), *self._engines.by_name]

    def describe(self) -> dict[str, Any]:
        """By name what each contender is: for the header of a results file."""
        described: dict[str, Any] = {name: _described(resolved) for name, resolved in self._plans.items()}
        for one in self._certified:
            described[one.contender].setdefault("certificates", []).append(one.described())
        for peer in self._peers:
            assistant = None if not peer.assisted or self._assistant is None else _part(self._assistant)
            described[peer.name] = {"peer": peer.name, "prompt_lookup_num_tokens": peer.lookup, "assistant": assistant}
        return described | self._engines.describe()

    def load(self, dtype: str | None) -> Loaded:
        """Load everything, each model once."""
        resolved_specs, models = self._checked(dtype), Models()
        first = next(iter(resolved_specs.values()))
        tools = BuildTools(find_tree=first.find_tree)
        target = models.of(first.parts[Kind.TARGET], tools)
        check_all(self._certified, dtype, target)
        contenders = [_contender(name, resolved, self._catalog, target, models) for name, resolved in resolved_specs.items()]
        if self._peers:
            model = reference_model(first.parts[Kind.TARGET])
            assisted = any(peer.assisted for peer in self._peers)
            assistant = reference_model(self._assistant) if assisted and self._assistant is not None else None
            contenders += [peer_contender(peer, model, assistant) for peer in self._peers]
        return Loaded(target, (*contenders, *self._engines.contenders))

    def _checked(self, dtype: str | None) -> dict[str, ResolvedSpec]:
        """The resolved specs of plain decoding and of the strategies, by the names that results call them."""
        choice, catalog = self._choice, self._catalog
        overrides = {} if choice.target is None else target_override(choice.target, catalog.registry)
        overrides |= {} if dtype is None else {"target.dtype": dtype}
        resolved_specs: dict[str, ResolvedSpec] = {}
        for strategy in choice.strategies:
            resolved = check(read(strategy, catalog, settings=choice.settings, overrides=overrides), catalog)
            _refuse_own_distribution(resolved)
            _refuse_replaced(choice.settings, resolved)
            resolved_specs[_free_name(resolved.spec.name, [PLAIN, *resolved_specs])] = resolved
        target = self._target(resolved_specs)
        mapping = {"name": PLAIN, **PLAIN_PARTS, "target": _part(target)}
        return {PLAIN: check(read(mapping, catalog), catalog), **resolved_specs}

    def _target(self, resolved_specs: Mapping[str, ResolvedSpec]) -> ResolvedPart:
        targets = {name: resolved.parts[Kind.TARGET] for name, resolved in resolved_specs.items()}
        first = next(iter(targets.values()))
        if others := [name for name, part in targets.items() if identity(part) != identity(first)]:
            raise SpecError(
                f"{next(iter(targets))} and {', '.join(others)} have different targets; speed-ups are against the same target: "
                "--target or --set names one for all"
            )
        return first

    def _assistant_part(self, target: ResolvedPart) -> ResolvedPart | None:
        """The draft model of assisted generation: the one that was named, else a strategy's."""
        if self._choice.assistant is not None:
            spec = {**PLAIN_PARTS, "name": "assistant", **target_override(self._choice.assistant, self._catalog.registry)}
            return check(read(spec, self._catalog), self._catalog).parts[Kind.TARGET]
        drafts = (part for resolved in self._plans.values() for part in resolved.nested.values())
        return next((p for p in drafts if runs_on_transformers(p) and identity(p) != identity(target)), None)

    def _chosen_peers(self, target: ResolvedPart) -> list[Peer]:
        asked = self._choice.peers
        if asked is None:
            names = [GENERATE, LOOKUP, *([ASSISTED] if self._assistant is not None else [])]
            return [peer_of(name) for name in names] if runs_on_transformers(target) else []
        peers = [peer_of(name) for name in dict.fromkeys(asked)]
        if peers and not runs_on_transformers(target):
            raise SpecError(f"target '{target.name}' is no transformers model: leave out --peer")
        if self._assistant is None and any(peer.assisted for peer in peers):
            raise SpecError(f"{ASSISTED} needs a draft model: --assistant names one, or a strategy whose drafter has one")
        return peers


def _contender(name: str, resolved: ResolvedSpec, catalog: Catalog, target: Target, models: Models) -> Contender:
    tools = BuildTools(find_tree=resolved.find_tree, sampling_seed=resolved.spec.sampling.seed)
    nested = {option: models.of(part, tools) for option, part in resolved.nested.items()}
    decoder = build(unlimited(resolved), catalog, target=target, models=nested)
    return Contender(name, Drafted(decoder, resolved.spec.sampling).answer)


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """A decoder under the benchmark's sampling, and its own truncation of drawn drafts."""

    decoder: Decoder
    own: SamplingParams

    def answer(self, task: Task) -> Timed:
        """Decode the task."""
        sampling = task.sampling.model_copy(update={"draft": self.own.draft})
        return run_task(self.decoder, replace(task, sampling=sampling))


def _described(resolved: ResolvedSpec) -> dict[str, Any]:
    draft = resolved.spec.sampling.draft
    spec = {**resolved.plain(), "sampling": {"draft": None if draft is None else draft.model_dump(mode="json")}}
    tree, verifier = resolved.parts[Kind.TREE].declares, resolved.parts[Kind.VERIFIER].declares
    return {"spec": spec, "shape": tree.shape.value, "guarantee": verifier.guarantee.value}


def _part(part: ResolvedPart) -> dict[str, Any]:
    return {"use": part.name, **part.options.model_dump(mode="json", exclude_none=True)}


def _refuse_own_distribution(resolved: ResolvedSpec) -> None:
    """Raise SpecError for a spec that would decode another distribution than the others."""
    usual = SamplingParams()
    own = [
        name
        for name in type(usual).model_fields
        if name not in SHARED and getattr(resolved.spec.sampling, name) != getattr(usual, name)
    ]
    if own:
        raise SpecError(
            f"{resolved.label}: sampling.{own[0]} is set; a benchmark decodes the same distribution with every strategy: "
            "temperature, top-k and top-p are its own options"
        )


def _refuse_replaced(settings: Sequence[str], resolved: ResolvedSpec) -> None:
    """Raise SpecError for a `--set` of a value that the benchmark's own settings would replace without a word."""
    usual = SamplingParams()
    for setting in settings:
        keys = [key.strip() for key in setting.partition("=")[0].split(".")]
        if keys[0] != "sampling":
            continue
        for name in SHARED - {"draft"}:
            whole = len(keys) == 1 and getattr(resolved.spec.sampling, name) != getattr(usual, name)
            if whole or keys[1:2] == [name]:
                raise SpecError(
                    f"--set {setting}: a benchmark sets sampling.{name} itself; "
                    "its own options are --temperature, --top-k, --top-p and --seed"
                )


def _free_name(name: str, taken: Sequence[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}#{number}", number + 1
    return free
