"""What users' code is made of: modules beside each other, files beside them that they name, packages that they import.

>>> sorted(map(str, imported(ast.parse("import gymnasium as gym; from os import path"), "")))
['gymnasium', 'os', 'os.path']
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import s2r_torch

PACKAGE = Path(s2r_torch.__file__).parent
MOST = 32  # folders in which files that a module names are looked for


def sources(things: list[Any]) -> list[Path]:
    """The users' files that classes and functions are written in, those beside them that these import, and data that
    any of them names."""
    files: list[Path] = []
    data: set[Path] = set()
    waiting = [inspect.getmodule(thing) for thing in things]
    while waiting:
        module = waiting.pop()
        file = getattr(module, "__file__", None)
        path = Path(file) if file else PACKAGE / "none"  # an interactive session has none: `digests_of_code`
        if path in files or not path.is_file() or PACKAGE in path.parents or "site-packages" in path.parts:
            continue
        files.append(path)
        tree, package = _parsed(path), getattr(module, "__package__", None) or ""
        named = [v if inspect.ismodule(v) else inspect.getmodule(v) for v in list(vars(module).values())]
        named += [sys.modules.get(name) for name in imported(tree, package)]
        waiting += [other for other in named if path.parent in Path(getattr(other, "__file__", None) or "/").parents]
        data.update(_data(tree, path.parent))
    return sorted({*files, *data})


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Names of modules that code in a package imports, and of what may be one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            with suppress(ImportError, ValueError):  # a relative one that leads nowhere, in a branch that is not taken
                base = importlib.util.resolve_name("." * node.level + base, package) if node.level else base
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def versions(modules: list[ModuleType | None]) -> dict[str, str]:
    """Package -> version, of those that modules import and that are installed; this one and Python's own are not."""
    found: dict[str, str] = {}
    for module in modules:
        file = getattr(module, "__file__", None)
        for name in imported(_parsed(Path(file)), "") if file else ():
            top = name.partition(".")[0]
            if top and top != "s2r_torch" and top not in sys.stdlib_module_names:
                found.update(_installed(top))
    return found


@cache
def _installed(top: str) -> dict[str, str]:
    try:
        return {top: importlib.metadata.version(top)}
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(top, ())
        return {name: importlib.metadata.version(name) for name in names}


def _data(tree: ast.AST, folder: Path) -> Iterator[Path]:
    """Files in a module's folder, or where the command was started, that a text of the module names.

    Also in folders below them that other texts name: `here / "data" / "gain.txt"`, in whatever way they are joined.
    """
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    folders = [folder, Path.cwd()]
    for place in folders:  # which grows
        for text in sorted(texts):
            with suppress(OSError, ValueError):  # no name of a file at all
                below = text.strip(".") and not Path(text).is_absolute() and (place / text).is_dir()
                if below and place / text not in folders and len(folders) < MOST:
                    folders.append(place / text)
                elif "." in text.strip(".") and (place / text).is_file():
                    yield place / text


def _parsed(path: Path) -> ast.AST:
    """A module's code; nothing where it is none, as of one that was edited since it was imported."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
