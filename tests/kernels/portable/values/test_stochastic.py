"""Random bits by operations of torch are those of the definition, whose generator has published answers."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch._inductor.virtualized import OpsWrapper

from fewbits.kernels.portable.values.stochastic import draws
from fewbits.kernels.portable.values.threefry import words
from fewbits.kernels.reference.values.stochastic import draws as defined
from fewbits.kernels.reference.values.threefry import ROUNDS_OF_HALVES, threefry
from tests.kernels.portable.compiling import BACKENDS, compiled, inductor_loads

CPU = torch.device("cpu")
SEEDS = (0, 1, 12345678901, 2**31, 2**32 - 1, 2**63 - 1)
PLACES = (
    (0, 0),
    (0, 1),
    (0, 63),
    (0, 64),
    (0, 65),
    (15, 1),
    (63, 200),
    (127, 2),
    (5, 1000),
    (2**35 - 7, 300),
)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("seed", SEEDS)
def test_draws_equal_the_definition(bits: int, seed: int) -> None:
    for first, n in PLACES:
        wanted = defined(np.arange(first, first + n), seed, bits)
        found = draws(n, seed, bits, CPU, first)
        assert np.array_equal(found.numpy(), wanted.astype(np.int64)), (first, n)


def test_the_zero_counter_has_the_published_words() -> None:
    """Random123's known answers for threefry4x32 with 13 rounds, a counter and a key of zeros."""
    found = words(0, 1, 0, CPU).numpy().view(np.uint32)[0]
    assert [f"{word:08x}" for word in found] == ["531c7e4f", "39491ee5", "2c855a92", "3d6abf9a"]


def test_counters_and_keys_beyond_32_bits_count() -> None:
    """The control: a generator that cut either to 32 bits would repeat itself."""
    for counter, seed in ((2**33 + 5, 3), (5, 2**40 + 3), (2**31, 2**63 - 1)):
        halves = np.array([[counter & 0xFFFFFFFF, counter >> 32, 0, 0]], np.uint32)
        wanted = threefry(halves, (seed & 0xFFFFFFFF, seed >> 32, 0, 0))
        assert np.array_equal(words(counter, counter + 1, seed, CPU).numpy().view(np.uint32), wanted)
    assert not torch.equal(words(2**33 + 5, 2**33 + 6, 3, CPU), words(5, 6, 3, CPU))


def test_shapes_are_known_without_values() -> None:
    assert draws(300, 1, 16, torch.device("meta"), 7).shape == (300,)


@inductor_loads
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bits", [16, 32])
def test_draws_compile_whole_for_any_length_and_seed(bits: int, backend: str) -> None:
    drawn = compiled(lambda n, seed: draws(n, seed, bits, CPU), backend)
    for n, seed in ((300, 5), (777, 5), (777, 2**40)):
        assert torch.equal(drawn(n, seed), draws(n, seed, bits, CPU))


@inductor_loads
def test_a_graph_of_inductor_writes_each_round_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Words written out anew wherever they are used triple with every round: of twelve there is no end.
    written = itertools.count()
    write = OpsWrapper._default

    def counted(self: OpsWrapper, *given: Any) -> Any:
        assert next(written) < 20_000
        return write(self, *given)

    monkeypatch.setattr(OpsWrapper, "_default", counted)
    torch._dynamo.reset()
    drawn = torch.compile(lambda: words(0, 64, 7, CPU, ROUNDS_OF_HALVES), fullgraph=True)
    assert torch.equal(drawn(), words(0, 64, 7, CPU, ROUNDS_OF_HALVES))
