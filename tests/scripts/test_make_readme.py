"""What documents show of commands' output is found, compared but for seconds, and replaced as a whole."""

import pytest
from make_readme import PASTED, ROOT, Pasted, moved


@pytest.mark.parametrize("pasted", PASTED, ids=lambda pasted: pasted.file)
def test_every_block_and_its_command_are_in_the_document(pasted):
    text = (ROOT / pasted.file).read_text(encoding="utf-8")
    lines = text.splitlines()
    start, end = pasted.cut(lines)
    assert pasted.command in text and all(line.startswith("    ") for line in lines[start:end]) and end - start > 5


def test_seconds_may_move_and_nothing_else():
    before = "explore    6.4 s  9 states\n│ seconds │ 96.3 │\nvalue >= 0.661\nwritten to runs/grid/20261128-1"
    assert moved(before, before.replace("6.4", "9.9").replace("96.3", "12").replace("20261128", "20270101")) == []
    assert moved(before, before.replace("0.661", "0.655")) == []  # within the tolerance
    assert moved(before, before.replace("0.661", "0.600")) == ["0.661 is now 0.6"]
    assert moved(before, before.replace("9 states", "9 states in 2 layers")) == ["2 numbers are now 3"]


def test_a_block_that_is_gone_is_named():
    with pytest.raises(ValueError, match="expected lines from 'first' to 'last'; got none, in README.md"):
        Pasted("README.md", "python x.py", "first", "last").cut(["first", "second"])
