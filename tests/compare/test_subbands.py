"""Bands keep all of an image, and say where the energy of layers lies: held to sums over 2 x 2 neighbours."""

import math
import re

import pytest
import pywt
import torch
from torch import nn

from fewbits.compare import SubbandModel, band_shares, haar_bands
from fewbits.compare.subbands import BANDS
from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.records import BandShares
from fewbits.train.tasks.digits_model import DigitModel


def images(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_bands_are_sums_and_differences_of_neighbours_and_keep_the_energy() -> None:
    x = images(3, 2, 6, 8)
    found = haar_bands(x)
    assert found.shape == (3, len(BANDS), 2, 3, 4)
    for i in range(3):
        for j in range(4):
            (a, b), (c, d) = ((x[:, :, 2 * i + r, 2 * j], x[:, :, 2 * i + r, 2 * j + 1]) for r in range(2))
            wanted = ((a + b + c + d) / 2, (a + b - c - d) / 2, (a - b + c - d) / 2, (a - b - c + d) / 2)
            for band, value in enumerate(wanted):
                assert (found[:, band, :, i, j] - value).abs().max() < 1e-14
    assert float(found.square().sum()) == pytest.approx(float(x.square().sum()), rel=1e-14)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-15), (torch.float32, 4e-7)])
def test_pywavelets_makes_the_images_of_their_bands_again(dtype: torch.dtype, within: float) -> None:
    x = images(3, 2, 6, 8, dtype=dtype)
    bands = [haar_bands(x)[:, band].numpy() for band in range(len(BANDS))]
    again = torch.from_numpy(pywt.idwt2((bands[0], tuple(bands[1:])), "haar"))
    assert again.dtype == dtype
    assert float((again - x).abs().max()) <= within * float(x.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bands_have_the_dtype_of_the_images(dtype: torch.dtype) -> None:
    found = haar_bands(images(2, 1, 4, 4, dtype=dtype))
    assert found.dtype == dtype
    assert not found.requires_grad


def test_each_network_sees_its_band_alone_and_all_are_trained() -> None:
    torch.manual_seed(0)
    model = SubbandModel(lambda: DigitModel(2, 4), 10, ("vertical", "low"))
    x = images(5, 1, 8, 8, dtype=torch.float32)
    logits = model(x)
    bands = haar_bands(x)
    wanted = model.fusion(torch.cat([model.networks[0](bands[:, 2]), model.networks[1](bands[:, 0])], 1))
    assert torch.equal(logits, wanted)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.fusion.parameters())
    assert all(any(p.grad.any() for p in net.parameters() if p.grad is not None) for net in model.networks)
    narrow = prepare(model, "mx:weight=mxfp4")
    assert not torch.equal(narrow(x), logits)


class Stripes(nn.Module):
    """Its layer's result is that of its input, and the gradient is of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        signs = torch.tensor([1.0, -1.0]).repeat(x.shape[2] // 2)
        found: torch.Tensor = (self.layer(x) * signs[:, None]).sum()
        return found


def test_shares_of_known_patterns() -> None:
    model = Stripes()
    checks = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(2, 2)[None, None]
    activation, gradient = band_shares(model, lambda: model(checks + 0.5))
    assert activation.layer == gradient.layer == "layer"
    assert activation.shares == pytest.approx(
        (0.2, 0, 0, 0.8), abs=1e-12
    )  # 0.25 and 1 of each value's square
    assert gradient.shares == pytest.approx((0, 1, 0, 0), abs=1e-12)
    assert model.layer.weight.grad is None
    assert math.isclose(sum(activation.shares), 1)
    assert band_shares(model, lambda: model(torch.zeros(1, 1, 2, 2)))[0].shares == (0, 0, 0, 0)
    for scale in (2.0**900, 2.0**-900):  # whose squares float64 does not hold
        model.double()
        large = band_shares(model, lambda scale=scale: model((checks + 0.5).double() * scale))
        assert [row.shares for row in large] == [activation.shares, gradient.shares]


def test_of_a_classifier_layers_with_images_are_listed() -> None:
    torch.manual_seed(0)
    model = DigitModel(4)
    rows = band_shares(model, lambda: model(images(3, 1, 8, 8, dtype=torch.float32)).square().mean())
    assert [(row.layer, row.kind) for row in rows][:4] == [
        ("conv1", "activation"), ("conv1", "gradient"), ("conv2", "activation"), ("conv2", "gradient"),
    ]  # fmt: skip
    assert all(sum(row.shares) == pytest.approx(1) for row in rows)
    assert not model.conv1._forward_hooks


def test_layers_that_overwrite_their_input_do_not_change_the_shares() -> None:
    def rows(*, inplace: bool) -> list[BandShares]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(inplace),
            nn.Conv2d(4, 2, 3, padding=1),
            nn.Hardtanh(-1, 1, inplace),
        )
        return band_shares(model, lambda: model(images(4, 1, 8, 8, dtype=torch.float32)).square().mean())

    plain, overwritten = rows(inplace=False), rows(inplace=True)
    assert overwritten == plain
    assert len(plain) == 8
    assert plain[0].shares != plain[2].shares  # before and after the activation


def test_bad_input_is_refused() -> None:
    for shape in ((1, 1, 3, 4), (1, 1, 0, 4), (1, 1, 4, 0), (1, 4, 4)):
        with pytest.raises(ArgumentError, match=re.escape(f"{shape}; expected")):
            haar_bands(torch.ones(shape))
    with pytest.raises(ArgumentError, match="int64"):
        haar_bands(torch.ones(1, 1, 2, 2, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="expected some of"):
        SubbandModel(nn.Flatten, 10, ("middle",))
    model = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match="no layer"):
        band_shares(model, lambda: model(torch.ones(1, 2)).sum())
