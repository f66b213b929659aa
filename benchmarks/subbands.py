"""Do small networks of frequency bands, with weights of few bits, do as well as one network of equal bytes?

Chai et al. say two to four times fewer bits, late fusion and fewer parameters; how bands are fused they do
not publish. Digits and, where its files lie, mnist10k. Bands of Haar's wavelets, a small convolutional
network for each with weights in 4 bits (MXFP4) while it trains, answers fused by a linear layer. Beside them
one network of the same architecture, as wide as the bands' bytes allow, in 4 bits, in 8 (MXFP8) and float32.
Bytes are those of the matrices packed along the axis that layers round along, scales and all, and of biases
in float32. Three ablations: the low band alone, in as many bytes; the four pixels of 2 x 2 in place of the
four bands, which know as much and are no frequencies; and high bands that are another image's, in training
too. The control, which has to lose, are the trained networks, each asked about another's band.

    python benchmarks/subbands.py [--seeds 3] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple

from _alternating import table, write
from _training import arguments, image_sets, trained
from torch import Tensor, nn
from torch.nn import functional

import fewbits as fb
from fewbits.compare import SubbandModel, haar_bands
from fewbits.evidence import paired
from fewbits.train.tasks.digits_model import DigitModel
from fewbits.train.tasks.digits_task import Digits, images_task
from fewbits.train.tasks.task import Hyperparameters

CHANNELS = 6  # of the network of a band
STEPS = {"digits": 600, "mnist10k": 400}
ONE, BANDS = "one network, mxfp4", "four bands"
EXCHANGED = "control: networks exchanged"
Create = Callable[[], nn.Module]


class Way(NamedTuple):
    """What is trained, and the format of its weights."""

    create: Create
    format: str = "mxfp4"


class Sees(nn.Module):
    """A model that sees its images changed."""

    def __init__(self, change: Callable[[Tensor], Tensor], model: nn.Module) -> None:
        super().__init__()
        self.change, self.model = change, model

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's logits."""
        logits: Tensor = self.model(self.change(images))
        return logits


def with_other_high_bands(images: Tensor) -> Tensor:
    """Return images whose three high bands are those of the image before in the batch."""
    low = functional.interpolate(functional.avg_pool2d(images, 2), scale_factor=2.0)
    return low + (images - low).roll(1, 0)


def with_pixels_as_bands(images: Tensor) -> Tensor:
    """Return images of one channel whose bands are the four pixels of each 2 x 2: Haar is its own inverse."""
    return functional.pixel_shuffle(haar_bands(images)[:, :, 0], 2)


def stored(model: nn.Module, format: str) -> dict[str, Tensor]:
    """Return what a file would hold of a model: matrices packed as layers round them, biases in float32."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    if format == "fp32":
        return parameters
    return {n: fb.quantize(p, format, axis=1) if p.ndim > 1 else p for n, p in parameters.items()}


def kilobytes(model: nn.Module, format: str) -> float:
    """Return what a model takes."""
    return sum(x.nbytes for x in stored(model, format).values()) / 1e3


def widest(make: Callable[[int], nn.Module], format: str, most: float) -> Way:
    """Return the widest network that takes at most so many kilobytes."""
    channels = 1
    while kilobytes(make(channels + 1), format) <= most:
        channels += 1
    return Way(partial(make, channels), format)


def ways(side: int) -> dict[str, Way]:
    """Return all that is trained on images of so many pixels a side; none takes more bytes than the bands."""
    bands = lambda: SubbandModel(lambda: DigitModel(CHANNELS, side // 2), 10)  # noqa: E731  # of this size
    alone = lambda channels: DigitModel(channels, side)  # noqa: E731
    low = lambda channels: SubbandModel(lambda: DigitModel(channels, side // 2), 10, ("low",))  # noqa: E731
    most = kilobytes(bands(), "mxfp4")
    return {
        ONE: widest(alone, "mxfp4", most),
        "one network, mxfp8": widest(alone, "mxfp8_e4m3", most),
        "one network, fp32": widest(alone, "fp32", most),
        BANDS: Way(bands),
        "low band alone": widest(low, "mxfp4", most),
        "four pixels, no bands": Way(lambda: Sees(with_pixels_as_bands, bands())),
        "another image's high bands": Way(lambda: Sees(with_other_high_bands, bands())),
    }


def measured(name: str, images: Digits, held_out: Digits, side: int, seeds: int) -> dict[str, list[float]]:
    """Return the accuracies of each way, by seed."""
    found: dict[str, list[float]] = {}
    for way, (create, format) in ways(side).items():
        hyper = Hyperparameters(steps=STEPS[name], batch_size=64, lr=1e-2)
        task = images_task(name, create, images, held_out, hyper)
        recipe = "fp32" if format == "fp32" else f"mx:weight={format}"
        for seed in range(seeds):
            trainer = trained(task, recipe, seed)
            found.setdefault(way, []).append(trainer.evaluate())
            if way == BANDS:
                exchange(trainer.model)
                found.setdefault(EXCHANGED, []).append(trainer.evaluate())
        print(f"{name}, {way}: {fmean(found[way]):.2f}", flush=True)
    return found


def exchange(model: nn.Module) -> None:
    """Ask the network of each band about the band before."""
    assert isinstance(model, SubbandModel)
    model.chosen = model.chosen[-1:] + model.chosen[:-1]


def rows_of(name: str, images: Digits, held_out: Digits, side: int, seeds: int) -> list[dict[str, Any]]:
    """Return a row for each way: its accuracy, and what is certain of its difference to one network."""
    found, sizes = measured(name, images, held_out, side, seeds), ways(side)
    rows: list[dict[str, Any]] = []
    for way, values in found.items():
        create, format = sizes[BANDS if way == EXCHANGED else way]
        row = {"data": name, "way": way, "kilobytes": kilobytes(create(), format), "values": values}
        row |= {"accuracy": fmean(values), "spread": stdev(values) if seeds > 1 else None}
        for key, than in (("one", ONE), ("bands", BANDS)):
            over = paired(values, found[than], 100 / len(held_out.labels))
            row |= {f"over_{key}": over.mean, f"margin_{key}": over.margin, f"differs_{key}": over.differs}
        rows.append(row)
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "")
    rows: list[dict[str, Any]] = []
    for images in image_sets():
        rows += rows_of(*images, given.seeds)
        write(given.json, rows)  # what there is, as the next one takes as long
    keys = ("data", "way", "kilobytes", "accuracy", "spread", "over_one", "margin_one", "over_bands")
    head = ("data", "way", "kB", "accuracy", "spread", "over one network", "+-", "over four bands", "+-")
    table(head, [tuple(row[key] for key in (*keys, "margin_bands")) for row in rows])
    print("A difference that is smaller than its 95 % interval (+-) shows nothing.")


if __name__ == "__main__":
    main()
