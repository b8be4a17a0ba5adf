"""Which target something was made with: the same in every dtype and on every device."""

from pathlib import Path

BITWISE = ", bitwise at width "
"""What a target's description says beyond which target it is."""


def target_name(description: str) -> str:
    """Which target a description is of, bitwise mode or not."""
    return description.partition(BITWISE)[0]


def same_target(before: str, now: str) -> bool:
    """Whether two names are of one target: the same text, two paths of one folder, or a folder that was moved."""
    if before == now:
        return True
    old, new = Path(before).expanduser(), Path(now).expanduser()
    if not new.is_dir():
        return False
    return old.samefile(new) if old.exists() else old.name == new.resolve().name
