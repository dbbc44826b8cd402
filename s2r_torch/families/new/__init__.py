"""A family of one's own to start from: a commented module, its experiment and its test, from texts beside this file."""

from __future__ import annotations

import keyword
import sys
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from s2r_torch.errors import FileError, SettingError
from s2r_torch.families import FAMILIES
from s2r_torch.files.whole import real_path, removed, write_text
from s2r_torch.registry import require_name
from s2r_torch.text import printable

BASES = ("function", "gym", "torch")


def write_family(name: str, base: str, folder: Path) -> list[Path]:
    """Writes NAME.py, conf/experiment/NAME.yaml and test_NAME.py.

    Args:
        name: of the module, and of the family.
        base: `function` (plain Python), `gym` (a Gymnasium environment) or `torch` (batches).
        folder: where the files go.

    Returns:
        The files.

    Raises:
        SettingError: another base, a name that is taken, or a file that is there.
        FileError: one of them cannot be written; then none is.
    """
    require_name(name, "family")
    if base not in BASES:
        raise SettingError(expected=f"a base of {BASES}", got=repr(base), cause="a typo")
    texts = {
        folder / f"{name}.py": base,
        folder / "conf" / "experiment" / f"{name}.yaml": "experiment",
        folder / f"test_{name}.py": "test",
    }
    there = [printable(path) for path in texts if real_path(path).exists()]
    if there:
        raise SettingError(
            expected="files that are not there yet", got=", ".join(there), cause="a family that was written before"
        )
    taken = name in FAMILIES or keyword.iskeyword(name) or name in sys.stdlib_module_names
    if taken or not name.isidentifier() or _installed(name):
        raise SettingError(
            expected="a name that is free, for a module",
            got=repr(name),
            cause="a hyphen; or a family, a word of Python, or a module of Python or of a package has that name",
        )
    try:
        for path, text in texts.items():
            source = (files(__package__) / f"{text}.txt").read_text(encoding="utf-8")
            write_text(path, source.replace("my_world", name))
    except BaseException:
        for path in texts:  # all of them or none: the same command is to work again
            with suppress(FileError):
                removed(path)
        raise
    return list(texts)


def _installed(name: str) -> bool:
    """Whether a module of that name is there already, which a file of that name would hide."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # a folder that holds no module hides nothing
