"""Records of settings: checked however they are built, and turned back into plain values."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Any

from s2r_torch.schema.kinds import kinds_of
from s2r_torch.schema.values import bound_to, value_of


class _Told(type):
    """Classes that tell an argument that there is not, or that is left out, before Python does."""

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(partial(cls.__init__, None))  # type: ignore[misc]  # cls is no instance

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        bound_to(cls.__name__, cls.__signature__, args, kwargs)
        return super().__call__(*args, **kwargs)


class Settings(metaclass=_Told):
    """Base of settings records: built in whatever way, their fields are of the declared types and within range."""

    def __post_init__(self):
        for name, kind in kinds_of(type(self)).items():
            object.__setattr__(self, name, value_of(kind, getattr(self, name), name))
        self.check_rules()

    def check_rules(self) -> None:
        """Rules between fields.

        Raises:
            SettingError: one is broken.
        """


def plain(record: Any) -> Any:
    """A record as nested dictionaries, lists and plain values; `build` makes it again."""
    if is_dataclass(record):
        return {field.name: plain(getattr(record, field.name)) for field in fields(record) if field.init}
    if isinstance(record, Mapping):
        return {name: plain(value) for name, value in record.items()}
    return [plain(value) for value in record] if isinstance(record, list | tuple) else record


def defaults(cls: type) -> dict[str, Any]:
    """The default of every field that has one, as nested plain values."""
    return {
        field.name: plain(field.default_factory() if field.default_factory is not MISSING else field.default)
        for field in fields(cls)
        if field.init and not (field.default is MISSING and field.default_factory is MISSING)
    }


def explained(cls: type) -> dict[str, str]:
    """Field -> its line under `Args` in the record's docstring; nothing where `python -OO` took docstrings away.

    Raises:
        KeyError: a field is not explained; a test asks for every record.
    """
    if sys.flags.optimize > 1:
        return {}
    block = re.search(r"^    Args:\n(.*?)(?:\n\n|\n    \w|\Z)", cls.__doc__ or "", re.DOTALL | re.MULTILINE)
    items = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", block[1] if block else "", re.MULTILINE)
    told = {name: " ".join(text.split()) for name, text in items}
    return {name: told[name] for name in kinds_of(cls)}
