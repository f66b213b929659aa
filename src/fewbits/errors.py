"""The errors that fewbits raises: one root, and the built-in that fits each.

Every message says what was given, what was expected and what to do.
"""


class FewbitsError(Exception):
    """Root of every error that fewbits raises on purpose."""


class FormatError(FewbitsError, ValueError):
    """A format that does not exist, or a text that is not in the format grammar."""


class ArgumentError(FewbitsError, ValueError):
    """An argument outside its legal values: an axis, a rounding name, a block size."""


class DataError(FewbitsError, ValueError):
    """Input data that cannot be used: a damaged file, a text too short, a NaN that was refused."""


class DTypeError(FewbitsError, TypeError):
    """An array whose elements are not the numbers that the operation needs."""


class MissingDependencyError(FewbitsError, ImportError):
    """An optional package is needed and is not installed."""
