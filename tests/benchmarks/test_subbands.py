"""What the benchmark of bands compares takes the bytes that it says and is narrow; seeds share nothing."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import subbands

from fewbits.compare import SubbandModel, haar_bands
from fewbits.nn import prepare
from fewbits.train.tasks.digits_model import DigitModel
from fewbits.train.tasks.digits_task import Digits

BITS = {"mxfp4": 4, "mxfp8_e4m3": 8}


def images(count: int, side: int = 8) -> torch.Tensor:
    return torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(0))


def counted(model: nn.Module, format: str) -> int:
    """Bytes by hand: elements of a row and a scale for each 32 of its inputs; biases have 4 bytes a value."""
    total = 0
    for p in model.parameters():
        if p.ndim == 1 or format == "fp32":
            total += 4 * p.numel()
        else:
            inputs = p.shape[1]
            total += p.numel() // inputs * (math.ceil(inputs * BITS[format] / 8) + math.ceil(inputs / 32))
    return total


@pytest.mark.parametrize("side", [8, 28])
def test_no_way_takes_more_bytes_than_the_bands_and_one_channel_more_would(side: int) -> None:
    ways = subbands.ways(side)
    most = counted(ways[subbands.BANDS].create(), "mxfp4")
    for name, (create, format) in ways.items():
        took = counted(create(), format)
        assert subbands.kilobytes(create(), format) * 1e3 == pytest.approx(took)
        assert took <= most
        wider = getattr(create, "args", None)  # of those that are as wide as the bytes allow
        assert wider is None or counted(create.func(wider[0] + 1), format) > most, name
    assert len(ways) == 7


def test_trained_models_compute_with_the_weights_whose_bytes_are_counted() -> None:
    for create, format in subbands.ways(8).values():
        if format == "fp32":
            continue
        torch.manual_seed(0)
        model = create()
        packed = {n: p.dequantize() if p.ndim > 1 else p for n, p in subbands.stored(model, format).items()}
        torch.manual_seed(0)
        narrow = prepare(create(), f"mx:weight={format},vector=fp32")
        wide = model(images(4))
        model.load_state_dict(packed)
        assert torch.allclose(narrow(images(4)), model(images(4)), atol=1e-6)  # the order of sums differs
        assert not torch.allclose(narrow(images(4)), wide, atol=1e-4)


def test_the_ablations_see_pixels_and_another_images_high_bands() -> None:
    x = images(3)
    pixels = haar_bands(subbands.with_pixels_as_bands(x))[:, :, 0]
    for band in range(4):
        assert torch.allclose(pixels[:, band], x[:, 0, band // 2 :: 2, band % 2 :: 2], atol=1e-6)
    mixed, bands = haar_bands(subbands.with_other_high_bands(x)), haar_bands(x)
    assert torch.allclose(mixed[:, 0], bands[:, 0], atol=1e-6)
    assert torch.allclose(mixed[:, 1:], bands[[2, 0, 1], 1:], atol=1e-6)


def test_exchanged_networks_are_asked_about_the_band_before() -> None:
    torch.manual_seed(0)
    model = SubbandModel(lambda: DigitModel(2, 4), 10)
    subbands.exchange(model)
    bands = haar_bands(images(3))
    answers = [network(bands[:, band]) for network, band in zip(model.networks, (3, 0, 1, 2), strict=True)]
    assert torch.equal(model(images(3)), model.fusion(torch.cat(answers, 1)))


def test_a_seed_alone_gives_what_it_gives_after_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subbands, "STEPS", {"small": 1})
    chosen = {name: subbands.ways(8)[name] for name in (subbands.ONE, subbands.BANDS)}
    monkeypatch.setattr(subbands, "ways", lambda side: chosen)
    small = Digits(images(64), torch.arange(64) % 10)
    state = torch.get_rng_state()
    both = subbands.measured("small", small, small, 8, seeds=2)
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(subbands, "range", lambda seeds: [1], raising=False)
    alone = subbands.measured("small", small, small, 8, seeds=1)
    assert set(both) == {subbands.ONE, subbands.BANDS, subbands.EXCHANGED}
    assert {way: values[1:] for way, values in both.items()} == alone
    assert both[subbands.ONE][0] != both[subbands.ONE][1]
