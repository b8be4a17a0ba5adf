"""Whether two models mean the same text by the same token id."""

import hashlib
import warnings

from specdec.errors import SpecdecWarning, TargetMismatch
from specdec.interfaces.parts import Target


def check_vocabularies(draft: Target, target: Target) -> None:
    """Raise TargetMismatch, naming the first id that differs, unless draft ids can be used as target ids.

    Padding differs between checkpoints of one tokenizer, so sizes prove nothing. Allowed are ids that only one side has, and
    trailing ids (fewer than half) whose texts the other side does not have under any id: tokens that were added later.
    Where only one side has a tokenizer, sizes must do: equal ones are let pass with a SpecdecWarning. Where neither has one,
    there is only the word of the spec.
    """
    if draft.codec is None or target.codec is None:
        if draft.codec is not target.codec:
            _compare_sizes(draft, target)
        return
    draft_ids, target_ids = draft.codec.vocabulary(), target.codec.vocabulary()
    draft_texts = {token: text for text, token in draft_ids.items()}
    target_texts = {token: text for text, token in target_ids.items()}
    shared = sorted(draft_texts.keys() & target_texts.keys())
    differing = [token for token in shared if draft_texts[token] != target_texts[token]]
    if not differing:
        return
    first = differing[0]
    trailing = [token for token in shared if token >= first]
    strangers = all(draft_texts[t] not in target_ids and target_texts[t] not in draft_ids for t in trailing)
    if strangers and 2 * len(trailing) < len(shared):
        return
    raise TargetMismatch(
        f"the draft model and the target have different vocabularies: id {first} is {draft_texts[first]!r} in the draft model "
        f"and {target_texts[first]!r} in the target; a draft model of the target's own family would work"
    )


def fingerprint(target: Target) -> str | None:
    """A text that tells vocabularies apart; None for a target without a tokenizer."""
    if target.codec is None:
        return None
    pairs = sorted((token, text) for text, token in target.codec.vocabulary().items())
    return hashlib.sha256(repr(pairs).encode()).hexdigest()[:16]


def check_fingerprint(stored: str | None, target: Target | None, *, what: str) -> None:
    """Raise TargetMismatch unless `what` was made with the target's vocabulary, as far as both can tell."""
    own = None if target is None else fingerprint(target)
    if None not in (stored, own) and stored != own:
        raise TargetMismatch(f"{what} was made with another vocabulary than the target's; one that is made anew would work")


def _compare_sizes(draft: Target, target: Target) -> None:
    """The only test that is left where one side's ids have no texts."""
    mute = "draft model" if draft.codec is None else "target"
    sizes = draft.facts.vocab_size, target.facts.vocab_size
    if sizes[0] != sizes[1]:
        raise TargetMismatch(
            f"the {mute} has no tokenizer to compare token ids by, and the vocabularies differ in size: {sizes[0]} in the "
            f"draft model, {sizes[1]} in the target; a tokenizer beside the {mute}'s weights would tell whether they fit"
        )
    warnings.warn(
        f"the {mute} has no tokenizer: that its {sizes[0]} token ids mean the other model's texts cannot be checked",
        SpecdecWarning,
        stacklevel=3,
    )
