"""Who decides whether code that a model brings is run: the person who runs specdec, never a file."""

import os
from typing import Annotated, Final, TypeAlias

from pydantic import Field

OPTION: Final = "trust_remote_code"
"""An option of this name, of any part, becomes what the person who runs the spec said, whatever the spec says."""

ENVIRONMENT: Final = "SPECDEC_TRUST_REMOTE_CODE"
"""Environment variable: 1 consents for all commands and calls."""

HOW: Final = f"--trust-remote-code, {ENVIRONMENT}=1 or specdec.load(..., {OPTION}=True)"
"""The ways to consent, for messages."""

Consent: TypeAlias = Annotated[
    bool,
    Field(
        description=f"the model needs code that its repository brings; consent is given by who runs it, never by a spec: {HOW}"
    ),
]
"""The type of an option of this name, with what it says."""


def consented(given: bool | None) -> bool:
    """Whether code that models bring may be run.

    Args:
        given: what the caller said, by a keyword or an option; None: nothing, so that the environment decides.
    """
    return os.environ.get(ENVIRONMENT, "").lower() in ("1", "true", "yes") if given is None else given
