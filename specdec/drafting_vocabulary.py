"""Whether two models mean the same text by the same token id."""

from specdec.errors import TargetMismatch
from specdec.interfaces import Target


def check_vocabularies(draft: Target, target: Target) -> None:
    """Raise TargetMismatch, naming the first id that differs, unless draft ids can be used as target ids.

    Padding differs between checkpoints of one tokenizer, so sizes prove nothing. Allowed are ids that only one side has, and
    trailing ids (fewer than half) whose texts the other side does not have under any id: tokens that were added later.
    Without a tokenizer on both sides nothing can be compared.
    """
    if draft.codec is None or target.codec is None:
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
