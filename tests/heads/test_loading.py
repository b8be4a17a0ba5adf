"""What is said of a head at load: it drafts worse for another target, revision or chat template than it was trained with."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from marked_letters import MarkedLetters

from specdec.errors import SpecdecWarning
from specdec.heads.checkpoint_path import SHIPPED
from specdec.heads.config import HeadConfig, TrainedWith
from specdec.heads.loading import warn_of_others
from specdec.interfaces.target_identity import template_hash
from specdec.targets.builtin import builtin_name
from specdec.targets.gguf_cache import unpacked_folder

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}


class Named:
    """A target by what heads ask of it."""

    def __init__(self, facts, description, revision=None, template="{{ a }}"):
        self.facts = replace(facts, description=description, revision=revision)
        self.codec = MarkedLetters(4, {})
        self.codec.chat_template = template


@pytest.fixture
def target(table):
    return lambda *given, **named: Named(table(4).facts, *given, **named)


OF_TINY = TrainedWith(target="org/tiny", revision="c0ffee", chat_template=template_hash("{{ a }}"))


@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        (("org/other",), {}, "was trained with target org/tiny, not org/other"),
        (("org/tiny",), {"revision": "beef"}, "was trained with revision c0ffee, not beef"),
        (("org/tiny",), {"template": "{{ b }}"}, f"chat template {OF_TINY.chat_template}, not {template_hash('{{ b }}')}"),
        (("other",), {"template": "{{ b }}"}, "target org/tiny, not other, and with chat template"),
    ],
)
def test_a_head_for_another_target_revision_or_template_warns_naming_both(target, given, named, words):
    with pytest.warns(SpecdecWarning, match=words):
        warn_of_others(OF_TINY, target(*given, **named), Path("head"))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("org/tiny",), {"revision": "c0ffee"}),
        (("org/tiny, bitwise at width 16",), {}),
        (("/models/tiny",), {}),
        (("org/tiny",), {"template": None}),
    ],
)
def test_the_same_target_elsewhere_or_without_a_revision_or_template_to_compare_says_nothing(target, given, named):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_others(OF_TINY, target(*given, **named), Path("head"))


def test_a_config_of_before_targets_were_named_is_read_and_says_nothing(target):
    old = HeadConfig(**SIZES, vocab_size=8).model_dump(mode="json")
    del old["trained_with"]
    config = HeadConfig.model_validate(old)
    assert config.trained_with is None
    warn_of_others(config.trained_with, target("any"), Path("head"))
    named = config.model_copy(update={"trained_with": OF_TINY})
    assert HeadConfig.model_validate_json(named.model_dump_json()) == named


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*/config.json")), ids=lambda path: path.parent.name)
def test_a_shipped_head_names_the_embedded_model_and_its_chat_template(path, target):
    trained_with = HeadConfig.model_validate_json(path.read_text()).trained_with
    template = (unpacked_folder() / "chat_template.jinja").read_text()
    assert trained_with == TrainedWith(target=builtin_name(), chat_template=template_hash(template))
    with pytest.warns(SpecdecWarning, match="trained with target SmolLM2-135M-Instruct .*, not other, and with chat template"):
        warn_of_others(trained_with, target("other"), path.parent)
