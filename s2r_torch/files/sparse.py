"""Memory that is mostly zero, as the places and the words that are not: files and processes leave its zeros out."""

from __future__ import annotations

import numpy as np

MOST = 4  # so manieth word at most may be other than 0
WORDS: dict[int, type[np.signedinteger]] = {4: np.int32, 8: np.int64}  # by bytes: a number's bits; -0.0 is no zero


def other_than_zero(memory: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The places of a memory's words that are not 0, and these words; None where it is not mostly zero.

    Args:
        memory: `[bytes]` uint8.
        size: bytes of a word.
    """
    if size not in WORDS:
        return None
    words = memory.view(WORDS[size])
    if np.count_nonzero(words) >= len(words) // MOST:
        return None
    (where,) = words.nonzero()
    return where, words[where]
