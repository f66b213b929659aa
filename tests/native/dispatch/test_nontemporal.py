"""Results that go to memory past the caches are the same bits as those that do not."""

from collections.abc import Iterator

import numpy as np
import pytest

from fewbits import _native, kernels
from fewbits.formats import parse
from fewbits.kernels import native
from fewbits.kernels.bits.memory import empty_aligned

FORMATS = (
    "mxfp4",
    "mxfp8_e4m3",
    "mxint8",
    "mx9",
    "nvfp4",
    "int8_channel",
    "binary_channel",
    "int8",
    "quda_half",
    "fp8_e5m2",
)
SHAPES = ((3, 4096), (5, 1000), (2, 37), (64, 40, 3))


@pytest.fixture(autouse=True)
def _choice_given_back() -> Iterator[None]:
    yield
    _native.force_nontemporal(None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_streamed_results_are_the_others(name: str, shape: tuple[int, ...]) -> None:
    fmt = parse(name)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x.flat[5] = np.inf
    for rounding in ("nearest_even", "stochastic"):
        chosen = kernels.options(fmt, rounding=rounding, seed=1, nonfinite="saturate")
        for isa in native.available_isas():
            native.force_isa(isa)
            found, parts = [], []
            for streams in (False, True):
                _native.force_nontemporal(streams)
                for offset in (0, 1):  # in units of a value: a result that does not start a vector
                    out = empty_aligned((x.size + 1,), np.float32)[offset : offset + x.size].reshape(shape)
                    packed = kernels.quantize(x, fmt, 1, chosen)
                    parts.append([None if part is None else part.tobytes() for part in packed])
                    found.append(kernels.fake_quantize(x, fmt, 1, chosen, out=out).copy())
                    found.append(kernels.dequantize(packed, fmt, shape, 1, np.float32, out=out).copy())
            for one in found[1:]:
                assert np.array_equal(one.view(np.uint32), found[0].view(np.uint32)), isa
            assert all(one == parts[0] for one in parts), isa
