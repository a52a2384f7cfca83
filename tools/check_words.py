#!/usr/bin/env python3
"""Counts the words of README.md outside code blocks; exit 1 if there are more than a newcomer reads."""

import pathlib
import sys

LIMIT = 900


def words_of(text):
    """Words outside ``` blocks and HTML comments; a table's bars are not words."""
    prose = "".join(part for i, part in enumerate(text.split("```")) if i % 2 == 0)
    while "<!--" in prose:
        before, _, rest = prose.partition("<!--")
        prose = before + rest.partition("-->")[2]
    return [word for word in prose.split() if any(c.isalnum() for c in word)]


count = len(words_of((pathlib.Path(__file__).resolve().parent.parent / "README.md").read_text()))
print(f"check_words: README.md has {count} words outside code blocks, {LIMIT} at most")
sys.exit(1 if count > LIMIT else 0)
