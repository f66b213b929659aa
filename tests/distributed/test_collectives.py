"""Collectives between processes: the bits of the definition on every rank, and the error within its bound."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import fewbits as fb
from fewbits.distributed import (
    CodecState,
    LocalSteps,
    Traffic,
    all_gather,
    all_reduce,
    all_to_all,
    average_gradients,
    codec,
    reduce_scatter,
    wire,
)
from tests.distributed.definition import all_reduced, cut, rounded
from tests.distributed.team import Team

Teams = Callable[[int], Team]
CODECS = (
    "fp32",
    "fp16",
    "bf16",
    "mxfp8_e4m3",
    "mxfp6_e2m3/rceil",
    "mxfp4",
    "nvfp4",
    "mx6",
    "vsq8",
    "int8_tensor",
    "int8_256",
    "fp8_e5m2:aps",
    "float(e=3,m=0):aps",
    "posit8_1",
    "int(4)",
    "fp16:kahan",
    "topk:density=0.1",
    "topk:density=0.03,values=mxfp8_e4m3",
)
SHAPES = ((), (0,), (1,), (100, 7), (33,), (5, 3, 2), (1025,))
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)


def given(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randn(shape, generator=generator) * 3)
    return x.to(dtype)


def same_everywhere(x: torch.Tensor) -> bool:
    """Return whether each rank has the same bits, by torch's own collectives."""
    octets = x.contiguous().view(-1).view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8)
    rows = [torch.empty_like(octets) for _ in range(distributed.get_world_size())]
    distributed.all_gather(rows, octets)
    return all(torch.equal(row, octets) for row in rows)


def reduce_everything(rank: int, size: int) -> None:
    few = size > 3  # of so many processes each takes its turn on a few cores
    for text in CODECS:
        for shape in SHAPES[::3] if few else SHAPES:
            for dtype in DTYPES if shape == (100, 7) and not few else DTYPES[:1]:
                for op in ("mean",) if few else ("sum", "mean"):
                    check_all_reduce(rank, size, text, shape, dtype, op)
        check_reduce_scatter(rank, size, text)
    check_strides_and_lists(rank, size)
    for text in ("fp8_e4m3:aps", "fp8_e5m2:aps"):
        for value in (1e38, 3e36, 2.0**115, 1.0, 1e-30, 1e-34):
            x = torch.full((4,), value / size)
            torch.testing.assert_close(all_reduce(x, text), size * x, rtol=0.3, atol=0)


def check_all_reduce(
    rank: int, size: int, text: str, shape: tuple[int, ...], dtype: torch.dtype, op: str
) -> None:
    what = (text, shape, dtype, op)
    xs = [given(r, shape, dtype) for r in range(size)]
    before = xs[rank].clone()
    found = all_reduce(xs[rank], text, op=op)
    assert torch.equal(xs[rank], before), what
    assert (found.shape, found.dtype) == (torch.Size(shape), dtype), what
    assert same_everywhere(found), what
    wanted, bound = all_reduced(xs, codec(text), op == "mean")
    assert torch.equal(found, torch.from_numpy(wanted).view(shape).to(dtype)), what
    if text == "int(4)":  # saturates: its bound is what the definition lost, which the line above compared
        return
    exact = sum(x.double() for x in xs) / (size if op == "mean" else 1)
    error = (torch.from_numpy(wanted).view(shape).double() - exact).abs().numpy()
    assert (error <= bound.reshape(shape) * (1 + 1e-6) + 1e-45).all(), what


def check_reduce_scatter(rank: int, size: int, text: str) -> None:
    if text.startswith(("fp8_e5m2:aps", "float(e=3")):
        return  # of which test_scaling.py computes the scale
    for shape in ((7, 33), (64,), (1, 5), (0, 3)):
        xs = [given(r, shape, torch.float32) for r in range(size)]
        found = reduce_scatter(xs[rank], text)
        rows = cut(shape[0], size, None)[rank]
        total = torch.zeros(found.numel())
        for x in xs:
            total += torch.from_numpy(rounded(x[rows].reshape(-1).numpy(), codec(text)))
        assert torch.equal(found, total.view(found.shape)), (text, shape)
        assert found.shape == torch.Size((rows.stop - rows.start, *shape[1:]))


def check_strides_and_lists(rank: int, size: int) -> None:
    xs = [given(r, (40, 12), torch.float32) for r in range(size)]
    turned = all_reduce(xs[rank].t(), "mxfp8_e4m3")
    assert torch.equal(turned, all_reduce(xs[rank].t().contiguous(), "mxfp8_e4m3"))
    assert torch.equal(all_reduce(xs[rank][::2], "mxfp4"), all_reduce(xs[rank][::2].clone(), "mxfp4"))
    bucket = [given(rank, s, torch.float32) for s in ((3,), (), (0, 4), (65, 2))]
    together = all_reduce(bucket, "mxfp8_e4m3")
    assert [x.shape for x in together] == [x.shape for x in bucket]
    flat = all_reduce(torch.cat([x.reshape(-1) for x in bucket]), "mxfp8_e4m3")
    assert torch.equal(torch.cat([x.reshape(-1) for x in together]), flat)
    assert all_reduce([], "mxfp4") == []
    # A layer with a scale of its own: small values live beside large ones.
    small, large = torch.full((64,), 1e-6), torch.full((64,), 1e3)
    alone, _ = all_reduce([small, large], "fp4_e3m0:aps")
    assert (alone > 0).all()
    assert not all_reduce(torch.cat([small, large]), "fp4_e3m0:aps")[:64].any()


@pytest.mark.parametrize("size", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_every_rank_has_the_bits_of_the_definition(team: Teams, size: int) -> None:
    team(size).run(reduce_everything)


@contextmanager
def small_parts_in_kept_memory() -> Iterator[None]:
    """Cut runs into many parts, and let all messages and results lie in kept memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewbits.distributed.wire._PART", 64)
        patch.setattr("fewbits.distributed.memory._KEPT", 0)
        wire._step.cache_clear()
        yield
    wire._step.cache_clear()


STATEFUL = ("int8_256:feedback", "fp4_e3m0:aps,feedback", "fp8_e4m3:auto_scale,feedback", "mxfp4:stochastic")


def reduce_in_parts(rank: int, size: int) -> None:
    rounds = [[given(10 * r + step, (3000,), torch.float32) for r in range(size)] for step in range(3)]
    layers = [7, 0, 1500, 1, 1492]

    def reduced(text: str) -> list[torch.Tensor]:
        state = CodecState(text) if text in STATEFUL else None
        results = []
        for xs in rounds:
            results += all_reduce(list(xs[rank].split(layers)), text, op="mean", state=state)
            results += [reduce_scatter(xs[rank], text, state=state, key="rows")]
        return [*results, *state.state_dict()["residuals"].values()] if state else results

    for text in (*CODECS, *STATEFUL):
        whole = reduced(text)
        with small_parts_in_kept_memory():
            parted = reduced(text)
        assert all(torch.equal(a, b) for a, b in zip(whole, parted, strict=True)), text
    with small_parts_in_kept_memory():
        for text in ("fp32", "mxfp8_e4m3", "topk:density=0.1"):
            first, again = all_reduce(rounds[0][rank], text), all_reduce(rounds[0][rank], text)
            kept = first.clone()
            for xs in rounds:
                all_reduce(xs[rank], text)
                reduce_scatter(xs[rank], text)
            assert torch.equal(first, kept), text  # the memory of a result is its owner's
            assert torch.equal(again, kept), text


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_parts_and_kept_memory_change_no_result(team: Teams, size: int) -> None:
    team(size).run(reduce_in_parts)


def copy_everything(rank: int, size: int) -> None:
    for text in ("fp32", "mxfp8_e4m3", "nvfp4", "int(4)", "fp8_e5m2"):
        xs = [given(r, (r + 1 if r else 0, 33), torch.float32) for r in range(size)]
        found = all_gather(xs[rank], text)
        assert same_everywhere(found)
        parts = [rounded(x.reshape(-1).numpy(), codec(text)) for x in xs]
        assert np.array_equal(found.reshape(-1).numpy(), np.concatenate(parts)), text
        sizes = [(rank + r) % 3 for r in range(size)]
        mine = given(rank, (sum(sizes), 5), torch.float32)
        rows = all_to_all(mine, text, split_sizes=sizes)
        wanted = []
        for r in range(size):
            theirs = [(r + other) % 3 for other in range(size)]
            start = sum(theirs[:rank])
            part = given(r, (sum(theirs), 5), torch.float32)[start : start + theirs[rank]]
            wanted.append(rounded(part.reshape(-1).numpy(), codec(text)))
        assert np.array_equal(rows.reshape(-1).numpy(), np.concatenate(wanted)), text
    scalar = all_gather(torch.tensor(float(rank)), "fp32")
    assert scalar.tolist() == list(range(size))
    copy_narrow(rank, size)


def copy_narrow(rank: int, size: int) -> None:
    for format in ("mxfp4", "nvfp4", "mx6", "int4_channel", "fp8_e4m3"):
        if format == "nvfp4":
            with pytest.raises(fb.ArgumentError, match="rows share one scale"):
                all_gather(fb.quantize(torch.ones(2, 32), format))
            continue
        qs = [fb.quantize(given(r, (r + 1, 40), torch.bfloat16), format) for r in range(size)]
        found = all_gather(qs[rank])
        assert isinstance(found, fb.NarrowTensor)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found.dequantize(), torch.cat([q.dequantize() for q in qs]))
        mine = fb.quantize(given(rank, (5, 40), torch.float32), format)
        swapped = all_to_all(mine)
        rows = cut(5, size, None)[rank]
        parts = [
            fb.quantize(given(r, (5, 40), torch.float32), format).dequantize()[rows] for r in range(size)
        ]
        assert torch.equal(swapped.dequantize(), torch.cat(parts))
    q = fb.quantize(given(rank, (4, 64), torch.float32), "mxfp6_e2m3")
    total = all_reduce(q, "mxfp8_e4m3")
    assert isinstance(total, fb.NarrowTensor)
    assert (total.format, total.axis) == (q.format, q.axis)
    assert torch.equal(
        total.dequantize(), fb.quantize(all_reduce(q.dequantize(), "mxfp8_e4m3"), "mxfp6_e2m3").dequantize()
    )
    with pytest.raises(fb.ArgumentError, match="blocks lie along the first"):
        all_gather(fb.quantize(torch.ones(32, 2), "mxfp4", axis=0))
    with pytest.raises(fb.ArgumentError, match="travels as it lies"):
        all_gather(q, "mxfp4")


@pytest.mark.parametrize("size", [2, 3])
def test_copies_are_rounded_once_and_narrow_tensors_not_at_all(team: Teams, size: int) -> None:
    team(size).run(copy_everything)


def idle_ranks_and_states(rank: int, size: int) -> None:
    """Ranks with nothing to send or to get, and states that went different ways."""
    x = torch.ones(3, 2) if rank == 0 else torch.ones(0, 2)
    for text in ("fp32", "mxfp4"):
        found = all_to_all(x, text, split_sizes=[0, 3, 0] if rank == 0 else [0, 0, 0])
        assert found.shape == ((3, 2) if rank == 1 else (0, 2))
        assert all_to_all(x[:0], text, split_sizes=[0, 0, 0]).shape == (0, 2)
    q = fb.quantize(torch.ones(3 if rank == 0 else 0, 32), "mxfp4")
    assert all_gather(q).shape == (3, 32)
    assert all_to_all(q, split_sizes=[0, 3, 0] if rank == 0 else [0, 0, 0]).shape == (
        3 if rank == 1 else 0,
        32,
    )
    text = "fp8_e4m3:auto_scale"
    state = CodecState(text)
    if rank == 2:
        state.load_state_dict({**state.state_dict(), "log2_scale": -1.0})
    for reduce in (all_reduce, reduce_scatter):
        with pytest.raises(fb.ArgumentError, match="disagree"):
            reduce(torch.ones(9), text, state=state)
    state = CodecState("mxfp4:feedback")
    all_reduce(torch.ones(9), "mxfp4:feedback", state=state)
    for n in (1, 8 if rank == 1 else 9):  # one rank's mistake stops all
        with pytest.raises(fb.ArgumentError):
            all_reduce(torch.ones(n), "mxfp4:feedback", state=state)
    torch.set_default_dtype(torch.float64)
    try:
        assert same_everywhere(all_reduce(torch.ones(9, dtype=torch.bfloat16), "mxfp4:feedback", state=state))
        assert all_reduce(torch.ones(9) / 3, "fp32").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_idle_ranks_take_part_and_states_that_differ_stop_all(team: Teams) -> None:
    team(3).run(idle_ranks_and_states)


def adapt_the_scale(rank: int, size: int) -> None:
    """FP8-LM: halve where more than one in 100 000 is clipped, and grow by 2^(1/1000) where not."""
    text, n = "fp8_e4m3:auto_scale", 100_000
    for reduce, op, most in (
        (all_reduce, "mean", 448),
        (all_reduce, "sum", 224),
        (reduce_scatter, "sum", 224),
    ):
        state, wanted = CodecState(text), 0.0
        # So many of all values lie beyond the largest whose sum is none, all of the second process.
        for beyond, step in ((0, 1e-3), (2, 1e-3), (3, -1.0), (0, 1e-3), (2, 1e-3)):
            largest = most * 2.0 ** -math.floor(wanted)
            x = torch.full((n,), largest)
            if rank == 1:
                x[:beyond] = 1.25 * largest
            found = reduce(x, text, op=op, state=state)
            wanted += step
            assert state.log2_scale == pytest.approx(wanted, abs=1e-12)
            assert found[-1] == (largest if op == "mean" else size * largest)


def sums_are_not_cut_for_ever(rank: int, size: int) -> None:
    """Values that fit, of which the sum does not: the scale learns of it."""
    state = CodecState("fp8_e4m3:auto_scale")
    for _ in range(3):
        found = all_reduce(torch.full((1000,), 448.0), "fp8_e4m3:auto_scale", state=state)
    assert (found == size * 448).all()


def test_an_automatic_scale_learns_of_sums_that_are_clipped(team: Teams) -> None:
    team(4).run(sums_are_not_cut_for_ever)


def test_an_automatic_scale_halves_where_values_are_clipped_and_grows_where_not(team: Teams) -> None:
    team(2).run(adapt_the_scale)


def in_arrival_order(x: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Add what ranks send as it might arrive at each: from the next rank on."""
    rows = [torch.empty_like(x) for _ in range(size)]
    distributed.all_gather(rows, x)
    total = torch.zeros_like(x)
    for step in range(size):
        total += rows[(rank + step) % size]
    return total


def compare_orders(rank: int, size: int) -> None:
    x = given(rank, (4096,), torch.float32)
    assert same_everywhere(all_reduce(x, "fp32"))
    assert not same_everywhere(in_arrival_order(x, rank, 4))


def test_sums_in_the_order_of_arrival_fail_the_test_of_equal_bits(team: Teams) -> None:
    team(4).run(compare_orders)


NONFINITE = ("mxfp4", "int(4)", "fp8_e4m3", "fp8_e5m2:aps", "posit8_1", "topk:density=0.01", "fp4_e3m0:aps")


def nonfinite_values(rank: int, size: int) -> None:
    for value in (torch.nan, torch.inf, -torch.inf):
        for text in NONFINITE:
            x = torch.ones(200)
            if rank == 1:
                x[70] = value
            for found in (all_reduce(x, text), all_reduce(x, text, op="mean")):
                assert not found[70].isfinite(), (text, value)
                assert same_everywhere(found)
            part = reduce_scatter(x, text)
            assert rank == 1 or not part[70].isfinite()
        assert not all_gather(x if rank else torch.ones(1), "int(4)")[71].isfinite()


def test_what_is_not_finite_on_one_rank_is_not_finite_on_any(team: Teams) -> None:
    team(2).run(nonfinite_values)


def disagree(rank: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        one = rank == 1
        for call, said in (
            (lambda: all_reduce(torch.ones(4), "mxfp4" if one else "mxfp6_e2m3"), "disagree.*mxfp6.*mxfp4"),
            (lambda: all_reduce(torch.ones(5 if one else 4), "mxfp4"), r"disagree.*\(4,\).*\(5,\)"),
            (lambda: all_reduce(torch.ones(4, dtype=torch.float64 if one else None), "mxfp4"), "float64"),
            (lambda: all_reduce(torch.ones(4), "mxfp4", op="mean" if one else "sum"), "disagree"),
            (lambda: reduce_scatter(torch.ones(4, 5 + one), "mxfp4"), "disagree"),
            (lambda: all_gather(torch.ones(4, 5 + one), "mxfp4"), "disagree"),
            (lambda: all_to_all(torch.ones(4, 5 + one), "mxfp4"), "disagree"),
            (
                lambda: all_gather(torch.ones(4, 5), "mxfp4") if one else all_reduce(torch.ones(4), "fp32"),
                "disagree",
            ),
        ):
            with pytest.raises(fb.ArgumentError, match=said):
                call()
        # What is wrong on one rank only stops all of them.
        for bad, error in (
            (torch.ones(4, dtype=torch.int32), fb.DTypeError),
            ("not a tensor", fb.DTypeError),
        ):
            with pytest.raises(error if one else fb.ArgumentError) as caught:
                all_reduce(bad if one else torch.ones(4), "mxfp4")
            assert one or "rank 1 failed" in str(caught.value)
        for wrong, right, error in (
            (lambda: all_reduce(None, "fp32"), lambda: all_reduce(torch.ones(4), "fp32"), fb.DTypeError),
            (
                lambda: all_reduce(np.ones(4, np.float32), "fp32"),
                lambda: all_reduce(torch.ones(4), "fp32"),
                fb.DTypeError,
            ),
            (
                lambda: all_to_all(torch.ones(3, 2), "fp32", split_sizes=[1.0, 1.0, 1.0]),
                lambda: all_to_all(torch.ones(3, 2), "fp32", split_sizes=[1, 1, 1]),
                fb.ArgumentError,
            ),
            (
                lambda: all_to_all(torch.ones(3, 2), "fp32", split_sizes=3),
                lambda: all_to_all(torch.ones(3, 2), "fp32", split_sizes=[1, 1, 1]),
                fb.ArgumentError,
            ),
            (
                lambda: all_reduce(torch.ones(4), None),
                lambda: all_reduce(torch.ones(4), "fp32"),
                fb.ArgumentError,
            ),
            (
                lambda: all_reduce(torch.ones(4, device="meta"), "fp32"),
                lambda: all_reduce(torch.ones(4), "fp32"),
                fb.ArgumentError,
            ),
            (
                lambda: all_gather(fb.quantize(torch.ones(4, 32), "mxfp4").to("meta")),
                lambda: all_gather(fb.quantize(torch.ones(4, 32), "mxfp4")),
                fb.ArgumentError,
            ),
            (
                lambda: all_gather(torch.ones(4), "fp32", traffic=3),
                lambda: all_gather(torch.ones(4), "fp32", traffic=Traffic()),
                fb.ArgumentError,
            ),
            (
                lambda: reduce_scatter(torch.ones(4), "mxfp4:feedback", state=3),
                lambda: reduce_scatter(torch.ones(4), "mxfp4:feedback", state=CodecState("mxfp4:feedback")),
                fb.ArgumentError,
            ),
        ):
            with pytest.raises(error if one else fb.ArgumentError) as caught:
                (wrong if one else right)()
            assert one or "rank 1 failed" in str(caught.value)
        with pytest.raises(fb.ArgumentError, match="group='x' is no process group"):
            all_reduce(torch.ones(4), "fp32", group="x")
        if one:
            patch.setattr("fewbits.distributed.peers._WIRE", 1)
        with pytest.raises(fb.ArgumentError, match=r"wire 3.*wire 1"):
            all_reduce(torch.ones(4), "mxfp4")


def no_parameters(rank: int, size: int) -> None:
    for text in ("fp32", "int8_256:feedback", "fp8_e5m2:aps", "topk:density=0.1,feedback"):
        model, traffic = torch.nn.ReLU(), Traffic()
        average_gradients(model, text, state=CodecState(text), traffic=traffic)
        assert traffic.sent["agreement"].calls >= 1  # all take part, and none waits
        assert all_reduce([], text, state=CodecState(text)) == []


def test_a_model_without_parameters_has_no_gradients_to_average(team: Teams) -> None:
    team(2).run(no_parameters)


def gradients_with_a_memory(rank: int, size: int) -> None:
    text, model = "mxfp4:feedback", torch.nn.Linear(32, 4, bias=False)
    gradient = given(rank, (4, 32), torch.float32)
    means, state = [], CodecState(text)
    for _ in range(3):
        model.weight.grad = gradient.clone()
        average_gradients(model, text, state=state)
        means.append(model.weight.grad)
    other = CodecState(text)
    for mean in means:
        assert torch.equal(mean, all_reduce(gradient, text, op="mean", state=other, key="weight"))
    assert not torch.equal(means[0], means[1])  # what was left out the first time came with the second


def test_gradients_are_averaged_with_what_rounding_took_before(team: Teams) -> None:
    team(2).run(gradients_with_a_memory)


def no_values(rank: int, size: int) -> None:
    """What has no values is refused before anything is received, so that the group goes on."""
    packed = fb.quantize(torch.ones(4, 32), "mxfp4").to("meta")
    x = torch.ones(4, 32, device="meta")
    model = torch.nn.Linear(2, 2, device="meta")
    for call in (
        lambda: all_reduce(x, "mxfp4"),
        lambda: reduce_scatter(x, "fp32"),
        lambda: all_gather(x, "fp32"),
        lambda: all_to_all(x, "fp32"),
        lambda: all_reduce(packed, "fp32"),
        lambda: all_gather(packed),
        lambda: all_to_all(packed),
        lambda: average_gradients(model, "fp32"),
        lambda: LocalSteps(model, steps=2),
    ):
        with pytest.raises(fb.ArgumentError, match="on the meta device, without values"):
            call()
        assert all_reduce(torch.ones(3), "fp32").tolist() == [size] * 3


def test_tensors_without_values_are_refused_and_the_group_goes_on(team: Teams) -> None:
    team(2).run(no_values)


def test_ranks_that_differ_all_stop_with_the_reason(team: Teams) -> None:
    team(3).run(disagree)


def two_levels(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "process"))
    for shape in ((1000,), (33, 3), (1,), (0,)):
        xs = [given(r, shape, torch.float32) for r in range(4)]
        exact = sum(x.double() for x in xs).reshape(-1).numpy()
        nodes = [(xs[0] + xs[1]).reshape(-1), (xs[2] + xs[3]).reshape(-1)]
        for text in ("fp32", "mxfp8_e4m3", "topk:density=0.2"):
            found = all_reduce(xs[rank], text, mesh)
            assert same_everywhere(found)
            for place in cut(exact.size, 2, codec(text).format):
                wanted, bound = all_reduced([x[place] for x in nodes], codec(text), False)
                mine = found.reshape(-1)[place].numpy()
                assert np.array_equal(mine, wanted), (text, shape)
                slack = 2.0**-23 * sum(x[place].abs().double().numpy() for x in nodes)
                assert (np.abs(mine - exact[place]) <= bound + slack).all(), (text, shape)
    small, large = torch.full((70,), 1e-6), torch.full((200,), 1e3)
    alone, _ = all_reduce([small, large], "fp4_e3m0:aps", mesh)  # a scale for each, wherever pieces are cut
    assert (alone > 0).all()
    traffic = Traffic()
    all_reduce(given(rank, (4096,), torch.float32), "mxfp4", mesh, traffic=traffic)
    assert traffic.nbytes < 4096 * 4 * 2
    with pytest.raises(fb.ArgumentError, match="a mesh of 2 dimensions"):
        all_gather(torch.ones(3), "mxfp4", mesh)
    assert same_everywhere(all_reduce(torch.ones(3) * rank, "fp32", mesh, op="mean"))
    assert all_reduce(torch.ones(3) * rank, "fp32", mesh, op="mean").tolist() == [1.5] * 3
    with pytest.raises(fb.ArgumentError):
        all_reduce(torch.ones(3 + (rank == 3)), "fp32", mesh)
    wrong: Any = 3 if rank == 0 else None  # which its node is told, and the other node too
    with pytest.raises(fb.ArgumentError, match=r"traffic=3; expected a Traffic"):
        all_reduce(torch.ones(3), "fp32", mesh, traffic=wrong)
    assert all_reduce(torch.ones(3), "fp32", mesh).tolist() == [4] * 3


def test_two_levels_are_equal_to_one_within_the_bound(team: Teams) -> None:
    team(4).run(two_levels)


def remember(rank: int, size: int) -> None:
    for text in ("mxfp4:feedback", "topk:density=0.05,feedback", "fp4_e3m0:aps,feedback"):
        for reduce in (all_reduce, reduce_scatter):
            state, sent, sums = CodecState(text), torch.zeros(()), torch.zeros(())
            for step in range(60):
                xs = [given(100 * step + r, (300,), torch.float32) / 16 for r in range(2)]
                sums = sums + xs[0] + xs[1]
                sent = sent + reduce(xs[rank], text, state=state)
            rows = cut(300, 2, None)[rank] if reduce is reduce_scatter else slice(None)
            left = state.state_dict()["residuals"][""]
            distributed.all_reduce(left)  # what is missing is just what all remember
            assert torch.allclose(sent + left[rows], sums[rows], atol=2e-4), (text, reduce)
            assert left.norm() > 0
    with pytest.raises(fb.ArgumentError, match="state=CodecState"):
        all_reduce(torch.ones(3), "mxfp4:feedback")
    with pytest.raises(fb.ArgumentError, match="a state of mxfp6"):
        all_reduce(torch.ones(3), "mxfp4", state=CodecState("mxfp6_e2m3"))


def test_with_feedback_nothing_is_lost_but_only_late(team: Teams) -> None:
    team(2).run(remember)


def chosen(v: torch.Tensor, density: float) -> torch.Tensor:
    """Return whether each value is among the largest; the first of equals."""
    order = v.abs().argsort(descending=True, stable=True)
    return torch.zeros(len(v), dtype=torch.bool).index_fill_(
        0, order[: math.ceil(Fraction(str(density)) * len(v))], True
    )


def gather_momentum(rank: int, size: int) -> None:
    """Lin et al., 2018, algorithms 1 and 2, written down once more, for the processes in turn."""
    for reduce in (all_reduce, reduce_scatter):
        n, text = 300, "topk:density=0.05,feedback,momentum=0.75"
        pieces = [(0, n)] if reduce is all_reduce else [(0, n // 2), (n // 2, n)]
        state, moved, waiting = CodecState(text), torch.zeros(size, n), torch.zeros(size, n)
        for step in range(20):
            xs = torch.stack([given(100 * step + r, (n,), torch.float32) / 16 for r in range(size)])
            moved = 0.75 * moved + xs
            waiting = waiting + moved
            total = torch.zeros(n)
            for r in range(size):
                for first, last in pieces:
                    place = chosen(waiting[r, first:last], 0.05)
                    total[first:last] += waiting[r, first:last] * place
                    waiting[r, first:last][place] = 0
                    moved[r, first:last][place] = 0
            rows = slice(None) if reduce is all_reduce else slice(*pieces[rank])
            found = reduce(xs[rank], text, state=state)
            assert torch.allclose(found, total[rows], rtol=1e-6, atol=1e-6), (reduce, step)
    every = CodecState("topk:density=1,feedback,momentum=0.75")  # nothing waits: no momentum at all
    for _ in range(3):
        assert all_reduce(torch.ones(5), every.codec, state=every).tolist() == [size] * 5
    torch.manual_seed(0)
    once, x = CodecState(text), torch.randn(n)
    all_reduce(x, text, state=once)
    with pytest.raises(fb.ArgumentError, match="300 values for"):
        all_reduce(x[1:], text, state=once)
    assert all_reduce(x.clone().fill_(torch.nan), text, state=once).isnan().any()
    assert all_reduce(torch.zeros(n), text, state=once).isfinite().all()


def test_momentum_of_what_waits_is_that_of_the_paper(team: Teams) -> None:
    team(2).run(gather_momentum)


def draw(rank: int, size: int) -> None:
    x = torch.full((1 << 14,), 0.3)
    text = "block(element=int(4),scale=e8m0,size=32)/stochastic"
    a, b = (all_reduce(x, text, state=CodecState(text, seed=seed)) for seed in (0, 0))
    assert torch.equal(a, b)
    other = all_reduce(x, text, state=CodecState(text, seed=1))
    assert not torch.equal(a, other)
    assert same_everywhere(other)
    state = CodecState(text)
    first, second = all_reduce(x, text, state=state), all_reduce(x, text, state=state)
    assert not torch.equal(first, second)
    assert abs(float(first.mean()) - 0.6) < 0.01
    again = CodecState(text)
    again.load_state_dict({**CodecState(text).state_dict(), "calls": 1})
    assert torch.equal(all_reduce(x, text, state=again), second)
    mine = reduce_scatter(x, text, state=CodecState(text))
    assert abs(float(mine.mean()) - 0.6) < 0.01


def test_draws_differ_by_call_and_repeat_by_seed(team: Teams) -> None:
    team(2).run(draw)


def test_without_a_process_group_the_error_says_what_to_call() -> None:
    for call in (all_reduce, reduce_scatter, all_gather, all_to_all):
        with pytest.raises(fb.ArgumentError, match="init_process_group"):
            call(torch.ones(3), "mxfp4")


@pytest.mark.parametrize(
    ("states", "rank", "said"),
    [
        ([], 0, "is no state; expected what state_dict"),
        ({}, 0, "is no state"),
        (3, 0, "is no state"),
        ([None], 0, "is no state"),
        ({"codec": "int8_256:feedback"}, 0, "is no state"),
        (
            [CodecState("int8_256:feedback").state_dict()] * 2,
            2,
            "rank=2 of size=2; expected a rank from 0 to 1",
        ),
        ([CodecState("int8_256:feedback").state_dict()] * 2, -1, "rank=-1 of size=2"),
    ],
)
def test_what_is_no_state_or_no_rank_is_refused(states: Any, rank: int, said: str) -> None:
    with pytest.raises(fb.ArgumentError, match=said):
        CodecState("int8_256:feedback").load_state_dict(states, rank=rank, size=2)


def test_states_of_different_lengths_are_refused_and_nothing_is_taken_over() -> None:
    one, other, mine = (CodecState("int8_256:feedback") for _ in range(3))
    for state, n in ((one, 3), (other, 2), (mine, 3)):
        kept = state.residual(["w"], [n])
        assert kept is not None
        kept.fill_(n + 0.25)
    one.seed = 5
    with pytest.raises(fb.ArgumentError, match=r"feedback of shape \(2,\) for 'w'; expected a row"):
        mine.load_state_dict([one.state_dict(), other.state_dict()])
    square = {**one.state_dict(), "residuals": {"w": torch.ones(3, 1)}}
    with pytest.raises(fb.ArgumentError, match=r"feedback of shape \(3, 1\) for 'w'; expected a row"):
        mine.load_state_dict(square)
    left = mine.residual(["w"], [3])
    assert left is not None
    assert (mine.seed, left.tolist()) == (0, [3.25] * 3)


@pytest.mark.parametrize("seed", [3, np.int64(3), -3])
def test_a_state_is_read_again_whatever_integer_its_seed_was(seed: Any) -> None:
    later = CodecState("mxfp4:stochastic")
    later.load_state_dict(CodecState("mxfp4:stochastic", seed=seed).state_dict())
    assert later.seed == seed


@pytest.mark.parametrize("seed", ["a", 1.5, None, True])
def test_a_seed_that_is_no_integer_is_refused(seed: Any) -> None:
    with pytest.raises(fb.ArgumentError, match=r"seed=.*; expected an integer"):
        CodecState("mxfp4:stochastic", seed=seed)
