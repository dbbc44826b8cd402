"""Settings records from plain values, checked by their types: the one door through which settings come in.

A record is a frozen dataclass. Its annotations say what is allowed, its defaults are the only ones there are, and its
docstring's `Args` say what is meant (`explained`):

    @dataclass(frozen=True)
    class Budget(Settings):
        '''...'''
        n_dist: Size = 100
        delta: Share = 0.1

>>> from s2r_torch.learning.merging import MergeSettings
>>> build(MergeSettings, {"n_merge": 2e3}, "density.merge").n_merge
2000
>>> build(MergeSettings, {"n_merg": 2000}, "density.merge")
Traceback (most recent call last):
    ...
s2r_torch.errors.SettingError: expected a key of density.merge: n_merge, zeta, relative, margin, deciders, \
band_deciders, n_merge_most; got density.merge.n_merg; likely cause: a typo for n_merge
"""

from s2r_torch.schema.kinds import (
    Count,
    Drawable,
    Name,
    OneOf,
    Positive,
    Range,
    Several,
    Share,
    Size,
    Where,
    Whole,
    describe,
    is_record,
    kinds_of,
    typo,
)
from s2r_torch.schema.records import Settings, defaults, explained, plain
from s2r_torch.schema.values import arguments, build, value_of

__all__ = [
    "Count",
    "Drawable",
    "Name",
    "OneOf",
    "Positive",
    "Range",
    "Settings",
    "Several",
    "Share",
    "Size",
    "Where",
    "Whole",
    "arguments",
    "build",
    "defaults",
    "describe",
    "explained",
    "is_record",
    "kinds_of",
    "plain",
    "typo",
    "value_of",
]
