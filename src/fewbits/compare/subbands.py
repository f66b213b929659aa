"""Images cut into frequency bands, a network for each, and the bands that activations and gradients are of.

Chai et al., Subband-based low-precision training: bands are learned by small networks whose weights have few
bits, and their answers are fused late. Bands are those of one level of Haar's wavelets (PyWavelets), which
keep all of an image: energies of the bands sum to that of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fewbits.errors import ArgumentError, MissingDependencyError
from fewbits.records import BandShares

BANDS = ("low", "horizontal", "vertical", "diagonal")
"""Means of 2 x 2 neighbours; what changes across rows, across columns, and across both."""


def haar_bands(images: Tensor) -> Tensor:
    """Return the bands of images.

    Args:
        images: (n, c, h, w) floating point, h and w even and above 0.

    Returns:
        (n, 4, c, h / 2, w / 2), in the order of ``BANDS``, without gradient, on the device of the images;
        computed on the CPU by PyWavelets, from a copy.

    Raises:
        ArgumentError: another shape or dtype.
        MissingDependencyError: PyWavelets is not installed.
    """
    if not (_has_bands(images) and images.is_floating_point()):
        raise ArgumentError(
            f"images {images.dtype} of shape {tuple(images.shape)}; expected floating point (n, c, h, w) with"
            " even h and w above 0: pad or cut them"
        )
    try:
        import pywt
    except ImportError:
        raise MissingDependencyError(
            "bands need PyWavelets, which is not installed: pip install 'fewbits[tasks]'"
        ) from None
    wide = images.detach() if images.dtype in (torch.float32, torch.float64) else images.detach().float()
    low, (horizontal, vertical, diagonal) = pywt.dwt2(wide.cpu().numpy(), "haar")
    found = [torch.from_numpy(band).to(images) for band in (low, horizontal, vertical, diagonal)]
    return torch.stack(found, 1)


def _has_bands(x: Tensor) -> bool:
    """Whether a tensor has the shape of images of even height and width."""
    return x.ndim == 4 and all(size > 0 and size % 2 == 0 for size in x.shape[2:])


class SubbandModel(nn.Module):
    """A classifier of each band, and a fusion of what they say.

    Args:
        create: returns the network of a band: from (n, c, h / 2, w / 2) to logits (n, classes).
        classes: of the images.
        bands: which are looked at, of ``BANDS``.

    Raises:
        ArgumentError: no such band, or none.
    """

    def __init__(self, create: Callable[[], nn.Module], classes: int, bands: Sequence[str] = BANDS) -> None:
        super().__init__()
        unknown = [band for band in bands if band not in BANDS]
        if unknown or not bands:
            raise ArgumentError(f"bands {list(bands)}; expected some of {list(BANDS)}")
        self.chosen = [BANDS.index(band) for band in bands]
        self.networks = nn.ModuleList(create() for _ in bands)
        self.fusion = nn.Linear(classes * len(bands), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, c, h, w)."""
        bands = haar_bands(images)
        answers = [net(bands[:, i]) for net, i in zip(self.networks, self.chosen, strict=True)]
        logits: Tensor = self.fusion(torch.cat(answers, 1))
        return logits


def band_shares(model: nn.Module, loss: Callable[[], Tensor]) -> list[BandShares]:
    """Return which bands the results of a model's layers, and the gradients of these, have their energy in.

    Layers whose result is no image of even height and width are left out.

    Args:
        model: its innermost modules are looked at, in one forward and backward pass.
        loss: calls the model, and returns a scalar. Gradients of parameters are left as they were.

    Raises:
        ArgumentError: no layer with images.
        MissingDependencyError: PyWavelets is not installed.
    """
    kept: list[tuple[str, Tensor]] = []
    with _results(model, kept):
        scalar = loss()
    if not kept:
        raise ArgumentError("no layer has a result of shape (n, c, h, w) with even h and w, and a gradient")
    found = torch.autograd.grad(scalar, [x for _, x in kept], allow_unused=True)
    rows = []
    for (name, result), gradient in zip(kept, found, strict=True):
        rows.append(BandShares(name, "activation", _shares(result)))
        if gradient is not None:
            rows.append(BandShares(name, "gradient", _shares(gradient)))
    return rows


@contextmanager
def _results(model: nn.Module, kept: list[tuple[str, Tensor]]) -> Iterator[None]:
    """Keep the results of innermost modules that bands can be made of."""

    def hook(name: str) -> Callable[[nn.Module, object, object], Tensor | None]:
        def keep(_: nn.Module, __: object, result: object) -> Tensor | None:
            if not isinstance(result, Tensor) or not _has_bands(result) or not result.requires_grad:
                return None
            kept.append((name, result))
            return result.clone()  # which the next layer may overwrite in place

        return keep

    handles = [
        module.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _shares(x: Tensor) -> tuple[float, ...]:
    """Return the part of the sum of squares that each band has; zeros where all is zero."""
    bands = haar_bands(x.double())
    energies = (
        (bands / (bands.abs().amax() or 1.0)).square().sum(dim=(0, 2, 3, 4))
    )  # squares may be beyond float64
    total = float(energies.sum())
    return tuple((energies / total).tolist()) if total else (0.0,) * len(BANDS)
