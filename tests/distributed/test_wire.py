"""A run that is coded in parts has the bytes and the values of one that is coded whole."""

from collections.abc import Iterator

import pytest
import torch

from fewbits.distributed import sent_bytes, wire
from fewbits.distributed.cost import AGREEMENT
from fewbits.recipes import Codec, codec
from tests import cases

WHOLE = ("nvfp4", "vsq8", "int8_tensor", "mxfp4:stochastic", "topk:density=0.1")
PARTED = ("fp32", "fp16", "mxfp8_e4m3", "mxfp6_e2m3/rceil", "mxfp4", "mx6", "int8_256", "posit8_1", "int(4)")
LENGTHS = (1, 255, 256, 257, 5000)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(wire, "_PART", 100)
    wire._step.cache_clear()
    yield
    wire._step.cache_clear()


def values(n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)) * 3


def encoded(x: torch.Tensor, how: Codec, residual: torch.Tensor | None = None) -> torch.Tensor:
    run = torch.zeros(wire.nbytes(how, len(x)), dtype=torch.uint8)
    wire.encode(x, how, run, 7, residual)
    return run


@pytest.mark.parametrize("text", [*PARTED, "block(element=int(8),scale=e8m0,size=48)", "mxfp4:feedback"])
@pytest.mark.parametrize("n", LENGTHS)
def test_parts_have_the_bytes_and_values_of_the_whole_run(text: str, n: int) -> None:
    how, x = codec(text), values(n)
    residuals = [values(n + 1)[:n] if how.feedback else None for _ in range(2)]
    whole = encoded(x, how, residuals[0])
    run, found, total = torch.zeros_like(whole), torch.empty(n), torch.ones(n)
    wanted, left = torch.empty(n), residuals[1]
    parts = list(wire.parts(how, n))
    assert (len(parts) > 1) == (n > parts[0][1]), parts
    assert n < 5000 or len(parts) > 1
    for start, stop in parts:
        rest = None if left is None else left[start:stop]
        wire.encode(x[start:stop], how, run, 7, rest, start=start, n=n)
    assert torch.equal(run, whole)
    if residuals[0] is not None and left is not None:
        assert torch.equal(left, residuals[0])
    for start, stop in parts:
        wire.decode(run, how, found[start:stop], start=start, n=n)
        wire.add(run, how, total[start:stop], start=start, n=n)
    wire.decode(whole, how, wanted)
    assert torch.equal(found, wanted)
    assert torch.equal(total, wanted + 1)


@pytest.mark.parametrize("percent", range(1, 101))
def test_a_density_in_percent_keeps_so_many_of_a_hundred(percent: int) -> None:
    how = codec(f"topk:density={percent / 100}")
    places = torch.arange(1.0, 101.0)
    found = torch.empty(100)
    wire.decode(encoded(places, how), how, found)
    assert found.count_nonzero() == wire.kept(how, 100) == percent
    assert wire.kept(how, 1000) == 10 * percent
    assert wire.kept(how, 101) == percent + 1
    assert sent_bytes(how, 1000, 2) == 40 * percent + -(-10 * percent * 10 // 32) * 4 + AGREEMENT


@pytest.mark.parametrize("text", WHOLE)
def test_runs_whose_values_depend_on_each_other_stay_whole(text: str) -> None:
    assert list(wire.parts(codec(text), 5000)) == [(0, 5000)]
    assert list(wire.parts(codec(text), 0)) == []


def test_parts_of_formats_with_a_scale_for_all_values_would_differ() -> None:
    how, x = codec("int8_tensor"), values(512) * torch.arange(512)
    halves = [torch.empty(256), torch.empty(256)]
    for part, out in zip(x.split(256), halves, strict=True):
        wire.decode(encoded(part, how), how, out)
    whole = torch.empty(512)
    wire.decode(encoded(x, how), how, whole)
    assert not torch.equal(torch.cat(halves), whole)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=str)
def test_every_format_in_parts_is_itself(fmt: object) -> None:
    how = codec(str(fmt))
    x, found = values(1000), torch.empty(1000)
    run = encoded(x, how)
    for start, stop in wire.parts(how, 1000):
        wire.decode(run, how, found[start:stop], start=start, n=1000)
    wanted = torch.empty(1000)
    wire.decode(run, how, wanted)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())
