"""The same plan with another target dtype, or at another temperature."""

from collections.abc import Mapping
from typing import Any

from specdec.checks import check, read
from specdec.plans import Plan, Workshop
from specdec.plugins import Kind


def replanned(plan: Plan, shop: Workshop, *, dtype: str, sampling: Mapping[str, Any] | None = None) -> Plan:
    """The plan with its target in `dtype`, where that has one, and with these sampling options, where they are given."""
    resolved = plan.resolved()
    target = dict(resolved["target"])
    if "dtype" in type(plan.parts[Kind.TARGET].options).model_fields:
        target["dtype"] = dtype
    return check(read({**resolved, "target": target, "sampling": dict(sampling or resolved["sampling"])}, shop), shop)
