"""Change what a file with narrow tensors says about them, and leave its data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Change = Callable[[dict[str, Any], dict[str, Any]], object]  # of the header and of the metadata's document


def rewrite(path: Path, change: Change) -> None:
    """Let ``change`` alter the header and the document under the key fewbits, and write the file anew."""
    octets = path.read_bytes()
    size = int.from_bytes(octets[:8], "little")
    header = json.loads(octets[8 : 8 + size])
    document = json.loads(header["__metadata__"]["fewbits"])
    change(header, document)
    header["__metadata__"]["fewbits"] = json.dumps(document)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + octets[8 + size :])


def as_version_1(path: Path) -> Path:
    """Take out what version 2 of the layout added: checksums, and the empty tensors of narrow ones' names."""

    def change(header: dict[str, Any], document: dict[str, Any]) -> None:
        del document["crc32"]
        document["version"] = 1
        for name in document["tensors"]:
            del header[name]

    rewrite(path, change)
    return path
