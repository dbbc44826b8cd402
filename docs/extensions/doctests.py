"""Docstrings as Markdown: doctests become code blocks, and shapes such as `E[r | x] [B, n]` are no links."""

import re

import griffe

DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent) *\S.*)*", re.MULTILINE)
FENCED = r"\g<indent>```pycon\n\g<0>\n\g<indent>```"
BETWEEN_BRACKETS = "] \N{ZERO WIDTH SPACE}["  # "[a] [b]" is a link to b


class Doctests(griffe.Extension):
    def on_object(self, *, obj, **_) -> None:
        if obj.docstring is not None:
            text = DOCTEST.sub(FENCED, obj.docstring.value)
            obj.docstring.value = text.replace("] [", BETWEEN_BRACKETS)
