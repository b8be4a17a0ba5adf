"""What a picture is drawn from: lines and bars as plain numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """kind: 'wealth' (x: tokens, y: log10 of an e-process), 'p' (y: one p-value) or 'tv' (y: total variations, by label)."""

    kind: str
    name: str
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
