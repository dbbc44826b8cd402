"""What networks can be told: a few settings that all have, and each architecture's own options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from s2r_torch.errors import SettingError
from s2r_torch.given import refuse_kind
from s2r_torch.predictors.nets.heads import HEADS
from s2r_torch.predictors.registry import net_class, variants
from s2r_torch.schema import OneOf, Positive, Range, Settings, Where, build, kinds_of, typo, value_of
from s2r_torch.text import printable

LARGEST = 2**14  # width or depth of a network: what is more was not written by this library


@dataclass(frozen=True)
class NetSettings(Settings):
    """What every network is told; each may be a list, whose values become networks of their own.

    Args:
        lipschitz_bound: C_L in density units (Assumption 4); `auto` lets training choose it, null takes the
            architecture's own.
        head: what combines densities, look-ups and x; null takes the architecture's own.
        width: hidden units.
        depth: number of hidden layers; null takes the architecture's own.
        x_width: hidden units of the free branch in x.

    Raises:
        SettingError: a size that makes no network.
    """

    lipschitz_bound: Positive | Literal["auto"] | None = None
    head: Annotated[str, OneOf(HEADS)] | None = None
    width: Annotated[int, Range(2, LARGEST), Where("even", lambda width: width % 2 == 0)] = 32
    depth: Annotated[int, Range(1, LARGEST)] | None = None
    x_width: Annotated[int, Range(1, LARGEST)] = 16


def net_settings(name: str, options: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[NetSettings, dict]:
    """Settings that all networks have, and the architecture's own options, all of them.

    Args:
        name: of the architecture, in messages.
        options: its options and their defaults; a value must be of its default's type.
        values: what was given.

    Raises:
        SettingError: an unknown key or a value of the wrong type or out of range.
    """
    common = kinds_of(NetSettings)
    if not isinstance(options, Mapping):
        refuse_kind(f"options of net {name}", options, "a dict of names and defaults")
    for key in values:
        if key not in common and key not in options:
            raise SettingError(
                expected=f"a key of net.{name}: {', '.join([*common, *options])}",
                got=f"net.{name}.{key}",
                cause=typo(key, [*common, *options]),
            )
    odd = [
        key
        for key, default in options.items()
        if not isinstance(default, int | float | str | list | tuple | dict | None)
    ]
    if odd:
        expected, got = (
            f"options of net {name} with defaults that are JSON values",
            printable(f"{odd[0]}: {options[odd[0]]!r}", 80),
        )
        raise SettingError(expected=expected, got=got, cause="policy files hold plain values only")
    own = {key: _own(default, values.get(key, default), f"net.{name}.{key}") for key, default in options.items()}
    return build(NetSettings, {key: values[key] for key in common if key in values}, f"net.{name}"), own


def with_defaults(told: NetSettings, bound: float | str, head: str, depth: int) -> NetSettings:
    """What was told, and an architecture's own where nothing was; SettingError for those that are none."""
    own: dict[str, Any] = {"lipschitz_bound": bound, "head": head, "depth": depth}
    return replace(told, **{key: value for key, value in own.items() if getattr(told, key) is None})


def require_constructor(cls: type) -> None:
    """Raises SettingError unless a class of networks is made as all are, settings included."""
    try:
        inspect.signature(cls.__init__).bind(None, None, 1, None, width=2)  # type: ignore[misc]
    except TypeError as error:
        expected = f"__init__(self, problem, members, generator, **settings) of {cls.__name__}"
        raise SettingError(expected=expected, got=str(error), cause="settings that are not handed on") from error


def _own(default: Any, value: Any, key: str) -> Any:
    """An option of the same kind as its default; lists and dictionaries are this network's alone."""
    if isinstance(default, list | tuple):
        return type(default)(value_of(tuple, value, key))
    return value_of(Any if default is None else Mapping if isinstance(default, dict) else type(default), value, key)


def check_nets(nets: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises SettingError unless every architecture is known and can be told what is said of it."""
    for name, values in nets.items():
        for one in variants(value_of(Mapping, values, f"net.{name}")):
            net_settings(name, net_class(name).options, one)
