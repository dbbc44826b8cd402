"""What only the extra `worlds` brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from s2r_torch.errors import SettingError


@contextmanager
def from_worlds(package: str, family: str) -> Iterator[None]:
    """Around what imports a package: where it is missing, a SettingError says how to install it for that family."""
    try:
        yield
    except ImportError as error:
        raise SettingError(
            expected=f"the package {package} for the family {family}",
            got=str(error),
            cause="install the extra: pip install '.[worlds]'",
        ) from error
