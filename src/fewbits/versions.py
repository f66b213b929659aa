"""Which releases of Python and of the packages run."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "0+unknown"  # of a source tree that is not installed
_PACKAGES = ("fewbits", "torch", "numpy")


def release(package: str) -> str:
    """Return the version of a package, or :data:`UNKNOWN` where it is not installed.

    >>> release("no such package")
    '0+unknown'
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN


def versions() -> tuple[tuple[str, str], ...]:
    """Return what decides a measurement: (package, version) of Python, fewbits, PyTorch and NumPy."""
    return ("python", sys.version.split()[0]), *((package, release(package)) for package in _PACKAGES)
