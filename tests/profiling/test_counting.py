"""Bytes and FLOP of operations, against numbers counted by hand."""

from typing import Any

import pytest
import torch
from torch.nn import functional

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.kernels import ops
from fewbits.nn import prepare
from fewbits.profiling.counting import Count, Counter, refuse_devices

aten = torch.ops.aten


def counted(job: Any) -> dict[str, Count]:
    """The last count of each operation."""
    counter = Counter()
    with counter:
        job()
    return {name: counts[-1] for (name, _), counts in counter.counts.items()}


def test_a_product_reads_both_matrices_and_writes_the_third() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    found = counted(lambda: a @ b)["aten::mm"]
    assert (found.read_bytes, found.written_bytes) == (4 * (15 + 35), 4 * 21)
    assert (found.flops, found.is_product, found.dtype) == (2 * 3 * 5 * 7, True, "float32")


def test_values_of_sixteen_bits_take_two_bytes() -> None:
    a = torch.ones(3, 5, dtype=torch.bfloat16)
    found = counted(lambda: a @ a.t())["aten::mm"]
    assert (found.moved_bytes, found.dtype) == (2 * (15 + 15 + 9), "bfloat16")


def test_a_convolution_sums_a_window_for_each_result_and_its_backward_pass_twice_that() -> None:
    x, weight = torch.ones(2, 3, 8, 8, requires_grad=True), torch.ones(4, 3, 3, 3, requires_grad=True)
    found = counted(lambda: functional.conv2d(x, weight, padding=1).sum().backward())
    window, results = 3 * 3 * 3, 2 * 4 * 8 * 8
    assert found["aten::convolution"].flops == 2 * window * results
    assert found["aten::convolution_backward"].flops == 2 * 2 * window * results
    assert found["aten::convolution"].moved_bytes == 4 * (x.numel() + weight.numel() + results)


def test_the_gradient_of_a_convolutions_bias_is_a_sum_and_no_product() -> None:
    x, weight = torch.ones(2, 3, 8, 8, requires_grad=True), torch.ones(4, 3, 3, 3, requires_grad=True)
    bias = torch.ones(4, requires_grad=True)
    found = counted(lambda: functional.conv2d(x, weight, bias, padding=1).sum().backward())
    assert found["aten::convolution_backward"].flops == 2 * 2 * (3 * 3 * 3) * (2 * 4 * 8 * 8)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_groups_of_a_convolution_multiply_only_their_own_channels(groups: int, is_transposed: bool) -> None:
    x = torch.ones(2, 4, 8, 8, requires_grad=True)
    weight = torch.ones(4, 4 // groups, 3, 3, requires_grad=True)
    convolve = functional.conv_transpose2d if is_transposed else functional.conv2d
    found = counted(lambda: convolve(x, weight, stride=2, padding=1, groups=groups).sum().backward())
    places = 8 * 8 if is_transposed else 4 * 4  # where a window is multiplied
    one = 2 * (3 * 3) * (4 // groups) * (2 * 4 * places)
    assert found["aten::convolution"].flops == one
    assert found["aten::convolution_backward"].flops == 2 * one
    frozen = counted(
        lambda: convolve(x.detach(), weight, stride=2, padding=1, groups=groups).sum().backward()
    )
    assert frozen["aten::convolution_backward"].flops == one


A, B = torch.ones(3, 4, 5), torch.ones(3, 5, 6)
INT8 = torch.ones(32, 32, dtype=torch.int8)
EYE = torch.eye(32)
LSTM = torch.nn.LSTM(4, 8)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    ("job", "name", "flops", "dtype"),
    [
        (lambda: torch.addmv(torch.ones(4), A[0], B[0, :, 0]), "aten::addmv", 2 * 4 * 5, "float32"),
        (lambda: torch.addbmm(torch.ones(4, 6), A, B), "aten::addbmm", 2 * 3 * 4 * 5 * 6, "float32"),
        (lambda: torch.ones(4, 6).addmm_(A[0], B[0]), "aten::addmm_", 2 * 4 * 5 * 6, "float32"),
        (lambda: torch.ones(3, 4, 6).baddbmm_(A, B), "aten::baddbmm_", 2 * 3 * 4 * 5 * 6, "float32"),
        (lambda: torch.ones(4).addmv_(A[0], B[0, :, 0]), "aten::addmv_", 2 * 4 * 5, "float32"),
        (lambda: torch._int_mm(INT8, INT8), "aten::_int_mm", 2 * 32**3, "int8"),
        (
            lambda: torch._weight_int8pack_mm(EYE[:4].bfloat16(), INT8, EYE[0].bfloat16()),
            "aten::_weight_int8pack_mm",
            2 * 4 * 32 * 32,
            "bfloat16",
        ),
        (lambda: A[0].to(torch.complex64) @ B[0].to(torch.complex64), "aten::mm", 8 * 4 * 5 * 6, "complex64"),
        (lambda: EYE.to_sparse() @ EYE[:, :4], "aten::mm", 2 * 32 * 4, "float32"),
        (lambda: EYE.to_sparse_csr() @ EYE[:, :4], "aten::mm", 2 * 32 * 4, "float32"),
        (lambda: torch.ones(500, 6) @ torch.eye(6).to_sparse_csr(), "aten::mm", 2 * 6 * 500, "float32"),
        (
            lambda: torch.addmm(EYE[:5], EYE[:5], EYE.to_sparse_csr()),
            "aten::addmm",
            2 * 32 * 5,
            "float32",
        ),
        (lambda: torch.vdot(EYE[0, :7], EYE[1, :7]), "aten::vdot", 2 * 7, "float32"),
        (
            lambda: torch._addmm_activation(torch.ones(6), A[0], B[0], use_gelu=True),
            "aten::_addmm_activation",
            2 * 4 * 5 * 6,
            "float32",
        ),
        (  # five taps over nine steps of two samples, from three channels to four
            lambda: torch.conv_tbc(torch.ones(9, 2, 3), torch.ones(5, 3, 4), torch.ones(4)),
            "aten::conv_tbc",
            2 * 5 * (9 - 5 + 1) * 2 * 3 * 4,
            "float32",
        ),
        (
            lambda: torch.sparse.sampled_addmm(EYE.to_sparse_csr(), torch.ones(32, 9), torch.ones(9, 32)),
            "aten::sparse_sampled_addmm",
            2 * 32 * 9,
            "float32",
        ),
        (lambda: EYE.to_sparse_csr() @ EYE[0], "aten::mv", 2 * 32, "float32"),
        (
            lambda: torch.sparse.addmm(EYE[:, :4], EYE.to_sparse(), EYE[:, :4]),
            "aten::_sparse_addmm",
            2 * 32 * 4,
            "float32",
        ),
        (
            lambda: torch.bmm(torch.stack([EYE, EYE]).to_sparse(), torch.ones(2, 32, 4)),
            "aten::bmm",
            2 * 2 * 32 * 4,
            "float32",
        ),
    ],
)
def test_products_that_pytorch_has_no_formula_for(job: Any, name: str, flops: int, dtype: str) -> None:
    found = counted(job)[name]
    assert (found.flops, found.is_product, found.dtype) == (flops, True, dtype)


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="a PyTorch without grouped_mm")
def test_products_of_groups_are_those_of_each_group() -> None:
    """As mixtures of experts have them: 3 and 5 of 8 rows, columns, or inner values, and whole stacks."""
    x, y, stack = torch.ones(8, 16), torch.ones(16, 8), torch.ones(2, 16, 4)
    ends = torch.tensor([3, 8], dtype=torch.int32)

    def flops(left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = ends) -> float:
        found = counted(lambda: functional.grouped_mm(left, right, offs=offs))["aten::_grouped_mm"]
        assert (found.is_product, found.dtype) == (True, "float32")
        return found.flops

    assert flops(x, stack) == 2 * (3 + 5) * 16 * 4
    assert flops(stack.mT, y) == 2 * 4 * 16 * (3 + 5)
    assert flops(y, x) == 2 * 16 * (3 + 5) * 16
    assert flops(stack, stack.mT, None) == 2 * (2 * 16 * 4 * 16)


def test_packed_and_scaled_products_are_products() -> None:
    x = torch.ones(4, 32, dtype=torch.bfloat16)
    packed = torch._convert_weight_to_int4pack_for_cpu(torch.ones(16, 32, dtype=torch.int32), 2)
    scales = torch.ones(1, 16, 2, dtype=torch.bfloat16)
    found = counted(lambda: torch._weight_int4pack_mm_for_cpu(x, packed, 32, scales))
    assert found["aten::_weight_int4pack_mm_for_cpu"].flops == 2 * 4 * 32 * 16
    if hasattr(functional, "scaled_mm"):
        narrow, one = torch.ones(16, 32).to(torch.float8_e4m3fn), torch.ones(())
        how = functional.ScalingType.TensorWise
        found = counted(lambda: functional.scaled_mm(narrow, narrow.t(), one, how, one, how))
        assert found["aten::_scaled_mm_v2"].flops == 2 * 16 * 32 * 16


def test_a_packed_weight_that_many_vectors_meet_is_multiplied_forward_and_backward() -> None:
    layer = torch.nn.Linear(128, 64, bias=False)
    layer.weight = torch.nn.Parameter(fb.quantize(torch.randn(64, 128), "mxfp4"), requires_grad=False)
    model, counter = torch.nn.Sequential(torch.nn.Linear(128, 128), layer), Counter()
    with counter:
        model(torch.randn(200, 128)).sum().backward()
    calls = [call for calls in counter.counts.values() for call in calls if call.is_product]
    # Of the first layer its result and the gradient of its weight; of the packed one result and input's.
    assert sum(call.flops for call in calls) == 2 * 2 * 200 * 128 * (128 + 64)


@pytest.mark.parametrize(
    ("job", "name", "flops"),
    [
        (lambda: B[0, :, 0] @ B[0, :, 0], "aten::matmul", 2 * 5),
        (lambda: A[0] @ B[0, :, 0], "aten::matmul", 2 * 4 * 5),
        (lambda: A[0, 0] @ B, "aten::matmul", 2 * 3 * 5 * 6),
        (lambda: A[0] @ B[0], "aten::matmul", 2 * 4 * 5 * 6),
        (lambda: A[:, None] @ B, "aten::matmul", 2 * 3 * 3 * 4 * 5 * 6),  # each with each
        (lambda: functional.linear(A, B[0].t(), torch.ones(6)), "aten::linear", 2 * 3 * 4 * 5 * 6),
    ],
)
def test_products_that_inference_mode_leaves_whole(job: Any, name: str, flops: int) -> None:
    with torch.inference_mode():
        found = counted(job)[name]
    assert (found.flops, found.is_product) == (flops, True)


@pytest.mark.parametrize(
    "job",
    [
        lambda: functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)),
        lambda: functional.conv_transpose2d(torch.ones(2, 4, 6, 6), torch.ones(4, 3, 3, 3)),
        lambda: functional.scaled_dot_product_attention(*[torch.ones(1, 2, 5, 16)] * 3),
        lambda: torch.einsum("ij,jk->ik", torch.ones(3, 4), torch.ones(4, 5)),
        lambda: torch.inner(torch.ones(3, 4), torch.ones(5, 4)),
        lambda: LSTM(torch.ones(5, 2, 4)),
        lambda: functional.layer_norm(torch.ones(3, 4), [4]) + torch.ones(4, 3).t().reshape(3, 4),
    ],
)
def test_inference_mode_counts_what_is_counted_without_gradients(job: Any) -> None:
    sums = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), Counter() as counter:
            job()
        calls = [call for calls in counter.counts.values() for call in calls]
        products = sum(call.flops for call in calls if call.is_product)
        sums.append((products, sum(call.moved_bytes for call in calls)))
    assert sums[0] == sums[1]
    assert sums[0][1] > 0


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_operands_are_their_values_and_indices() -> None:
    rows, dense = EYE.to_sparse_csr(), torch.ones(32, 4)
    assert counted(lambda: rows @ dense)["aten::mm"].read_bytes == 4 * 32 + 8 * (33 + 32) + 4 * 128
    pairs = EYE.to_sparse()
    assert counted(lambda: pairs @ dense)["aten::mm"].read_bytes == 4 * 32 + 8 * 2 * 32 + 4 * 128


def test_of_two_sparse_matrices_nobody_knows_which_values_meet() -> None:
    for sparse in (EYE.to_sparse(), EYE.to_sparse_csr()):
        assert not counted(lambda sparse=sparse: sparse @ sparse)["aten::mm"].is_product


def test_attention_multiplies_twice_forward_and_five_times_backward() -> None:
    query, key, value = (torch.ones(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    found = counted(lambda: functional.scaled_dot_product_attention(query, key, value).sum().backward())
    one = 2 * (2 * 4) * 16 * 16 * 8
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert found[flash].flops == 2 * one
    assert found[f"{flash}_backward"].flops == 5 * one


def test_fused_attention_and_layers_of_transformers_are_all_their_products() -> None:
    x = torch.ones(2, 5, 16)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    projections, scores, linear = 2 * 10 * 16 * (4 * 16), 2 * 2 * (2 * 5 * 5) * 16, 2 * 2 * 10 * 16 * 32
    with torch.no_grad():
        fused = counted(lambda: attention(x, x, x))["aten::_native_multi_head_attention"]
        whole = counted(lambda: layer(x))["aten::_transformer_encoder_layer_fwd"]
    assert (fused.flops, fused.is_product) == (projections + scores, True)
    assert (whole.flops, whole.is_product) == (projections + scores + linear, True)


def test_an_lstm_multiplies_inputs_and_states_by_its_weights_in_each_step() -> None:
    lstm, x = torch.nn.LSTM(6, 5, batch_first=True), torch.ones(3, 7, 6)
    with torch.no_grad():
        found = counted(lambda: lstm(x))
    assert found["aten::mkldnn_rnn_layer"].flops == 2 * 3 * 7 * (4 * 5 * 6 + 4 * 5 * 5)


def test_a_bilinear_layer_multiplies_each_pair_by_a_weight_for_each_output() -> None:
    layer, x, y = torch.nn.Bilinear(4, 5, 6), torch.ones(7, 4), torch.ones(7, 5, requires_grad=True)
    counter = Counter()
    with counter:
        layer(x, y).sum().backward()
    products = [c for (name, _), found in counter.counts.items() if name == "aten::_trilinear" for c in found]
    assert [(c.flops, c.is_product) for c in products] == [(2 * 7 * 4 * 5 * 6, True)] * 3


def test_nested_tensors_are_refused_for_what_they_are() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model, padded = torch.nn.TransformerEncoder(layer, 1).eval(), torch.zeros(2, 5, dtype=torch.bool)
    padded[0, 3:] = True
    with torch.no_grad(), pytest.raises(ArgumentError, match="makes nested tensors, whose operations cannot"):
        counted(lambda: model(torch.ones(2, 5, 16), src_key_padding_mask=padded))


def test_packed_operands_count_as_they_lie() -> None:
    x = torch.randn(4, 64)
    found = counted(lambda: fb.quantize(x, "mxfp4"))["fewbits::quantize"]
    assert (found.read_bytes, found.written_bytes) == (4 * 256, 256 // 2 + 256 // 32)
    q = fb.quantize(x, "mxfp4")
    opened = counted(q.dequantize)["fewbits::dequantize"]
    assert (opened.read_bytes, opened.written_bytes) == (256 // 2 + 256 // 32, 4 * 256)


def test_a_product_that_rounds_inside_says_so_and_one_of_rounded_operands_does_not() -> None:
    a, b, e4m3 = torch.randn(4, 64), torch.randn(64, 6), fb.format("mxfp8_e4m3")
    chosen = ops.conversions.Choices("nearest_even", "floor", "saturate")
    inside = counted(lambda: ops.rounded_product(a, b, (e4m3, e4m3), (chosen, chosen)))
    before = counted(lambda: ops.rounded_product(a, b, (e4m3, e4m3)))
    assert inside["fewbits::rounded_product"].rounds_inside
    assert not before["fewbits::rounded_product"].rounds_inside
    assert inside["fewbits::rounded_product"].flops == 2 * 4 * 64 * 6


@pytest.mark.parametrize(
    ("job", "name", "read", "written"),
    [
        (lambda x: x.view(8), "aten::view", 0, 0),
        (lambda x: x.t(), "aten::t", 0, 0),
        (torch.empty_like, "aten::empty_like", 0, 0),
        (lambda x: x.copy_(torch.ones(2, 4)), "aten::copy_", 32, 32),  # what is overwritten is not read
        (lambda x: x.zero_(), "aten::zero_", 0, 32),
        (lambda x: x.add_(1.0), "aten::add_", 32, 32),
        (lambda x: torch._foreach_mul_([x], 2.0), "aten::_foreach_mul_", 32, 32),
        (lambda x: x[:, :1].expand(2, 4).sum(), "aten::sum", 8, 4),  # a value for each row lies there
        (lambda x: functional.embedding(torch.tensor([1]), x), "aten::embedding", 8 + 16, 16),
    ],
)
def test_bytes_of_operations_that_are_not_what_they_seem(
    job: Any, name: str, read: int, written: int
) -> None:
    x = torch.zeros(2, 4)
    found = counted(lambda: job(x))[name]
    assert (found.read_bytes, found.written_bytes) == (read, written)


ROWS, VALUES = torch.tensor([1, 5]), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("job", "name", "read", "written"),
    [
        (lambda x: x.index_add_(0, ROWS, VALUES), "aten::index_add_", 24 + 16 + 24, 24),
        (lambda x: x.index_copy_(0, ROWS, VALUES), "aten::index_copy_", 16 + 24, 24),
        (lambda x: x.index_fill_(0, ROWS, 1.0), "aten::index_fill_", 16, 24),
        (lambda x: x.index_put_((ROWS,), VALUES), "aten::index_put_", 16 + 24, 24),
        (lambda x: x.index_put_((ROWS,), VALUES, accumulate=True), "aten::index_put_", 24 + 16 + 24, 24),
        (lambda x: x.scatter_(0, ROWS[:, None], VALUES), "aten::scatter_", 16 + 24, 8),
        (lambda x: x.scatter_add_(0, ROWS[:, None], VALUES), "aten::scatter_add_", 8 + 16 + 24, 8),
        (lambda x: x.put_(ROWS, VALUES[0, :2]), "aten::put_", 16 + 8, 8),
        (lambda x: x.put_(ROWS, VALUES[0, :2], accumulate=True), "aten::put_", 8 + 16 + 8, 8),
        (lambda x: torch.embedding_renorm_(x, ROWS, 1.0, 2.0), "aten::embedding_renorm_", 24 + 16, 24),
        (lambda x: x.index_add(0, ROWS, VALUES), "aten::index_add", 4 * 3000 + 16 + 24, 4 * 3000),
    ],
)
def test_what_scatters_touches_only_a_part_of_the_table(job: Any, name: str, read: int, written: int) -> None:
    table = torch.zeros(1000, 3)
    found = counted(lambda: job(table))[name]
    assert (found.read_bytes, found.written_bytes) == (read, written)
    assert found.flops == (3000 if name == "aten::index_add" else written // 4)


@pytest.mark.parametrize(
    ("job", "name", "read", "values"),
    [
        (lambda x: functional.embedding(ROWS, x), "aten::embedding", 24 + 16, 6),
        (lambda x: x[ROWS], "aten::index", 24 + 16, 6),
        (lambda x: x.index_select(0, ROWS), "aten::index_select", 24 + 16, 6),
        (lambda x: x.gather(0, ROWS[:, None]), "aten::gather", 8 + 16, 2),
        (lambda x: x.take(ROWS), "aten::take", 8 + 16, 2),
        (
            lambda x: functional.embedding_bag(ROWS.repeat(2), x, torch.tensor([0, 4]), mode="sum"),
            "aten::_embedding_bag",  # or that name with an ending
            4 * 12 + 4 * 8 + 2 * 8,
            4 * 3,
        ),
    ],
)
@pytest.mark.parametrize("trained", [False, True])
def test_what_looks_up_reads_only_a_part_of_the_table(
    job: Any, name: str, read: int, values: int, trained: bool
) -> None:
    table = torch.zeros(1000, 3, requires_grad=trained)
    (found,) = (count for at, count in counted(lambda: job(table)).items() if at.startswith(name))
    assert (found.read_bytes, found.flops) == (read, values)


def test_lists_of_tensors_have_an_operation_for_each_value_of_all() -> None:
    many = [torch.ones(100) for _ in range(50)]
    assert counted(lambda: torch._foreach_mul_(many, 2.0))["aten::_foreach_mul_"].flops == 5000
    assert counted(lambda: torch._foreach_add(many, many))["aten::_foreach_add"].flops == 5000
    assert counted(lambda: torch.cat(many))["aten::cat"].flops == 5000
    parameters = [torch.ones(100, requires_grad=True) for _ in range(5)]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for p in parameters:
        p.grad = torch.ones(100)
    assert counted(optimizer.step)["aten::_fused_adamw_"].flops == 500


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_of_a_sparse_tensor_values_that_are_there_count() -> None:
    for sparse in (EYE.to_sparse(), EYE.to_sparse_csr()):
        assert counted(lambda sparse=sparse: sparse * 2)["aten::mul"].flops == 32


def test_only_a_conversion_to_fewer_bits_narrows() -> None:
    x = torch.ones(4)
    assert counted(x.bfloat16)["aten::_to_copy"].narrows
    assert not counted(x.double)["aten::_to_copy"].narrows
    assert not counted(lambda: x + 1)["aten::add"].narrows
    half = torch.ones(4, dtype=torch.float16)
    assert counted(lambda: half.copy_(x))["aten::copy_"].narrows
    assert not counted(lambda: x.copy_(half))["aten::copy_"].narrows


@pytest.mark.parametrize("x", [torch.randn(32, 64), torch.randn(32, 2)], ids=["wide", "narrow"])
def test_rounding_across_the_last_axis_is_strided_and_along_it_is_not(x: torch.Tensor) -> None:
    assert counted(lambda: ops.fake_quantize(x, "mxfp4", 0, ops.conversions.Choices(), 0, None))[
        "fewbits::fake_quantize"
    ].strided
    assert not counted(lambda: ops.fake_quantize(x, "mxfp4", 1, ops.conversions.Choices(), 0, None))[
        "fewbits::fake_quantize"
    ].strided


IMAGES = torch.randn(8, 4, 6, 6).to(memory_format=torch.channels_last)
MATRIX = torch.randn(8, 6)


@pytest.mark.parametrize(
    ("job", "name", "strided"),
    [
        (lambda: torch.relu(IMAGES), "aten::relu", False),  # its values lie one after the other
        (lambda: torch.sin(MATRIX.t()), "aten::sin", False),
        (lambda: torch.sin(MATRIX[:, :3]), "aten::sin", True),
        (lambda: torch.sin(MATRIX[::2]), "aten::sin", True),
        (lambda: torch.empty(6, 8).copy_(MATRIX.t()), "aten::copy_", True),
        (lambda: torch.empty(8, 6).copy_(MATRIX), "aten::copy_", False),
        (lambda: torch.empty(6, 8).t().copy_(MATRIX), "aten::copy_", True),
        (lambda: torch.empty(6, 8).t().copy_(MATRIX.t().contiguous().t()), "aten::copy_", False),
        (lambda: torch.empty(8, 6).copy_(MATRIX[0]), "aten::copy_", False),
        (lambda: MATRIX.t().contiguous(), "aten::clone", True),
        (IMAGES.clone, "aten::clone", False),
    ],
)
def test_strided_is_what_reads_across_and_not_what_lies_in_another_order(
    job: Any, name: str, strided: bool
) -> None:
    assert counted(job)[name].strided == strided


def test_counting_changes_no_bit() -> None:
    def gradient(counter: Any) -> torch.Tensor:
        torch.manual_seed(0)
        layer = prepare(torch.nn.Sequential(torch.nn.Linear(64, 32)), "mxfp8")
        with counter:
            layer(torch.ones(4, 64)).sum().backward()
        found = layer[0].weight.grad
        assert found is not None
        return found

    assert torch.equal(gradient(Counter()), gradient(torch.enable_grad()))


def test_a_tensor_on_another_device_is_refused() -> None:
    class Elsewhere:
        device = type("Device", (), {"type": "cuda"})()

    with pytest.raises(ArgumentError, match="measured on the CPU"):
        refuse_devices([Elsewhere()])
    refuse_devices([torch.ones(2), torch.ones(2, device="meta")])
