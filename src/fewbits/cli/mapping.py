"""Parses --map: PATTERN=FORMAT rules, or a proposal in a JSON file."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewbits.errors import ArgumentError, DataError, FormatError
from fewbits.formats import Format, parse

Rules = dict[str, Format]  # by patterns of names; the first that matches decides


def read_map(given: Sequence[str], scale_rule: str | None) -> tuple[Rules, str]:
    """Return the rules of ``--map``, and the scale rule: the one given, that of a proposal, or floor.

    Raises:
        ArgumentError: a text that is neither PATTERN=FORMAT nor a file, a proposal of nothing, or one that
            was measured with another scale rule.
        DataError: a file that is no proposal.
        FormatError: no such format.
    """
    rules: Rules = {}
    for text in given:
        path = Path(text)
        if "=" in text and not path.is_file():
            pattern, fmt = _typed(text)
            rules.setdefault(pattern, fmt)
        elif path.is_file():
            proposed, rule = _proposed(path)
            if scale_rule not in (None, rule):
                raise ArgumentError(f"{text} was measured with --scale-rule {rule}; give no other")
            rules |= {name: fmt for name, fmt in proposed.items() if name not in rules}
            scale_rule = rule
        else:
            raise ArgumentError(
                f"--map {text!r:.200} is no file, and not PATTERN=FORMAT as in 'layers.0.*=mx9'"
            )
    return rules, scale_rule or "floor"


def _typed(text: str) -> tuple[str, Format]:
    """Split PATTERN=FORMAT at the first sign of equality: formats have more of them."""
    pattern, _, fmt = text.partition("=")
    if not pattern.strip():
        raise ArgumentError(f"--map {text!r:.200} is not PATTERN=FORMAT; write it as in 'layers.0.*=mx9'")
    return pattern.strip(), parse(fmt.strip())


def _proposed(path: Path) -> tuple[Rules, str]:
    """Return the formats that a report of a checkpoint proposes, by names, and the scale rule."""
    document = _document(path)
    try:
        tensors, rule = document["checkpoint"]["tensors"], str(document["checkpoint"]["scale_rule"])
        formats = {glob.escape(t["tensor"]): parse(t["proposed"]) for t in tensors if t["proposed"]}
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    except (KeyError, TypeError):
        raise DataError(
            f"{path} is no report of a checkpoint; give what `fewbits compare --json` wrote"
        ) from None
    if not formats:
        raise ArgumentError(f"{path} proposes no format; ask for fewer decibels with --min-qsnr")
    return formats, rule


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not JSON ({error!s:.200}); give what `fewbits compare --json` wrote"
        ) from None
