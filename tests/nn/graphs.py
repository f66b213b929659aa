"""What the graph behind a loss holds on to until the backward pass."""

from collections.abc import Iterable, Iterator

import torch


def of_graph(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield every tensor that the graph behind a loss holds on to."""
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        saved += getattr(node, "saved_tensors", ())
        for one in saved:
            yield from (t for t in (one if isinstance(one, tuple) else (one,)) if isinstance(t, torch.Tensor))


def kept_bytes(loss: torch.Tensor, own: Iterable[torch.Tensor]) -> int:
    """Return the bytes of all storages that the graph holds on to, but for those of ``own``."""
    mine = {t.untyped_storage().data_ptr() for t in own}
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in of_graph(loss))}
    return sum(bytes_ for where, bytes_ in storages.items() if where not in mine)
