"""Texts of others, where they are shown."""

import pytest

from specdec.files.text_escapes import csv_cell, file_name, markdown_text, terminal_text


def test_the_terminal_shows_escape_sequences_and_does_not_get_them():
    assert terminal_text("a\x1b[2Jb\x07\x9bc\r\u202ed") == "a\\x1b[2Jb\\x07\\x9bc\\r\\u202ed"
    assert terminal_text("é\n\t😀") == "é\n\t😀"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_a_spreadsheet_computes_no_cell(text):
    assert csv_cell(text) == f"'{text}"


def test_numbers_and_other_texts_of_a_spreadsheet_stay_what_they_are():
    assert [csv_cell(value) for value in (-1.5, None, "plain", "a=1")] == [-1.5, None, "plain", "a=1"]


def test_a_text_in_markdown_is_one_line_without_html_links_pictures_and_cells():
    text = markdown_text("a|b\n# c <img src=x> ![p](http://x) [l](http://x)")
    assert text == "a\\|b # c &lt;img src=x> !\\[p]\\(http://x) [l]\\(http://x)"
    assert markdown_text("1.52x [1.48, 1.57]") == "1.52x [1.48, 1.57]"


def test_a_part_of_a_files_name_leads_to_no_folder():
    assert file_name("../a b/c\n") == ".._a_b_c_"
