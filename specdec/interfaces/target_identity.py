"""Which target something was made with: the same in every dtype and on every device."""

import hashlib

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


def template_hash(template: str | None) -> str | None:
    """Tells a chat template from others.

    Returns:
        The first 16 hexadecimal digits of its SHA-256, or None where there is no template.
    """
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()[:16]
