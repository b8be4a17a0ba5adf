import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tabular_cases import Case

from specdec.drafters.tabular import TabularDrafterOptions
from specdec.targets.tabular import TabularTargetOptions

ANSWERS = Path(__file__).parents[2] / "data" / "verification_known_answers.json"


@pytest.fixture(scope="session")
def known_answers() -> dict[str, Any]:
    return json.loads(ANSWERS.read_text())


def case_of(name: str, vocab: int, p: dict[str, Any], q: dict[str, Any]) -> Case:
    """Histories start after the prompt and the root, which are both token 0."""
    return Case(
        name,
        TabularTargetOptions(vocab=vocab, rows=p, start=2),
        TabularDrafterOptions(vocab=vocab, rows=q, start=2),
        prefix=(0, 0),
    )


@pytest.fixture(scope="session")
def single_case(known_answers) -> Callable[[str], Case]:
    def make(name: str) -> Case:
        entry = known_answers["single_step"][name]
        return case_of(name, entry["V"], {"*": entry["p"]}, {"*": entry["q"]})

    return make


@pytest.fixture(scope="session")
def sequence_case(known_answers) -> Callable[[str], Case]:
    def make(name: str) -> Case:
        entry = known_answers["sequence"][name]

        def rows(distribution: str) -> dict[str, Any]:
            given = {str(token): row for token, row in enumerate(entry[f"{distribution}_given"])}
            return {"": entry[f"{distribution}_root"], "*": entry[f"{distribution}_deeper"], **given}

        return case_of(name, entry["V"], rows("p"), rows("q"))

    return make
