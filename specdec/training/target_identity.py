"""Which target something was made with: the same in every dtype and on every device."""

from specdec.files.paths import exists, expanded, is_folder, is_same, resolved

BITWISE = ", bitwise at width "
"""What a target's description says beyond which target it is."""


def target_name(description: str) -> str:
    """Which target a description is of, bitwise mode or not."""
    return description.partition(BITWISE)[0]


def same_target(before: str, now: str) -> bool:
    """Whether two names are of one target: the same text, two paths of one folder, or a folder that was moved."""
    if before == now:
        return True
    old, new = expanded(before), expanded(now)
    if not is_folder(new):
        return False
    return is_same(old, new) if exists(old) else old.name == resolved(new).name
