"""JSON objects with unique keys; Python's own parser silently keeps the last of two equal keys."""

from __future__ import annotations

from collections import Counter

from fewbits.errors import DataError


def unique_keys(owner: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dict; for ``object_pairs_hook`` of :func:`json.loads`.

    Args:
        owner: what error messages call the document.
        pairs: (key, value).

    Raises:
        DataError: a key occurs more than once.

    >>> import json
    >>> from functools import partial
    >>> json.loads('{"a": 1, "b": 2}', object_pairs_hook=partial(unique_keys, "the text"))
    {'a': 1, 'b': 2}
    """
    document = dict(pairs)
    if len(document) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise DataError(
            f"{owner} names {name!r:.200} {times} times; expected every name once: fetch or write it again"
        )
    return document
