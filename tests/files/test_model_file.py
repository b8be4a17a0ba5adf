from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from specdec.files.model_file import read_model, write_model


class Model(BaseModel):
    texts: list[str]
    numbers: list[float] = []


@settings(max_examples=50)
@given(st.lists(st.one_of(st.text("0189-+.eE", max_size=6), st.text(st.characters(codec="utf-8", exclude_categories=["C"])))))
@example(["0320198", "1e5", ".5", "-", "true", "null", "~", "", "- x", "0x10", "12:30", "a: b", "#c", "\xa0", "a\u2009"])
def test_texts_stay_texts_whatever_they_look_like(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("models") / "m.yaml"
    write_model(path, Model(texts=texts), "test")
    assert read_model(path, Model, "test").texts == texts


def test_numbers_keep_six_digits(tmp_path):
    write_model(tmp_path / "m.yaml", Model(texts=[], numbers=[1.23456789e-5, 2.0, 123456789.0]), "test")
    assert read_model(tmp_path / "m.yaml", Model, "test").numbers == [1.23457e-5, 2.0, 123457000.0]


class Named(BaseModel):
    facts: dict[str, int] = {}


def test_a_key_that_is_a_number_in_yaml_is_a_text_where_texts_are_keys(tmp_path):
    (tmp_path / "m.yaml").write_text("kind: test\nfacts: {1: 2}\n")
    assert read_model(tmp_path / "m.yaml", Named, "test").facts == {"1": 2}
