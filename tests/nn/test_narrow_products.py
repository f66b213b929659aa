"""Products written as functions are those of fewbits' own layers, values and gradients, where asked for."""

import copy
import math
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fewbits as fb
from fewbits.nn import DotProductAttention, LayerPrecision, attention_product, linear, narrow_products
from fewbits.recipes import recipe

RECIPES = ["mxfp8", "mxfp6", "mx6", "fp8-stochastic"]


class Written(nn.Module):
    """A layer, and a function of tensors behind it."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.inner = Inner(function)

    def forward(self, *tensors: Tensor) -> Tensor:
        first, *rest = tensors
        result: Tensor = self.inner(self.layer(first).to(first.dtype), *rest)
        return result


class Inner(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).requires_grad_() for shape in shapes]


def made(function: Callable[..., Tensor], name: str) -> nn.Module:
    torch.manual_seed(0)
    return fb.prepare(Written(function), name)


def results(model: nn.Module, tensors: list[Tensor]) -> list[Tensor]:
    """What a model gives, and all gradients."""
    torch.manual_seed(1)  # of stochastic rounding
    y = model(*tensors)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    return [y, *torch.autograd.grad((y * weights).sum(), [*tensors, *model.parameters()])]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attending(nn.Module):
    """The same model with the layer of fewbits in the place of the function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.inner = DotProductAttention()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = self.inner(self.layer(q).to(q.dtype), k, v)
        return result.to(q.dtype)


@pytest.mark.parametrize("name", RECIPES)
def test_attention_is_that_of_the_layer_bit_for_bit(name: str) -> None:
    tensors = drawn(*[(2, 3, 17, 32)] * 3)
    torch.manual_seed(0)
    layer = fb.prepare(Attending(), f"{name}:keep_first=false,keep_last=false,logit_gradient=true")
    own = made(attend, f"{name}:keep_first=false,keep_last=false,logit_gradient=true")
    off = results(own, tensors)
    on = results(narrow_products(own), tensors)
    assert same(on, results(layer, tensors))
    assert not torch.equal(on[0], off[0])  # the control: without it they are wide


PRODUCTS: list[tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = [
    (lambda a, b: a @ b, (2, 3, 9, 32), (2, 3, 32, 5)),
    (torch.matmul, (2, 9, 32), (2, 32, 5)),
    (torch.bmm, (4, 9, 32), (4, 32, 5)),
    (lambda a, b: a.bmm(b), (4, 9, 32), (4, 32, 5)),
    (torch.mm, (9, 32), (32, 5)),
    (lambda a, b: a.matmul(other=b), (9, 32), (32, 5)),
    (lambda a, b: torch.einsum("bhqd,bhdk->bhqk", a, b), (2, 3, 9, 32), (2, 3, 32, 5)),
    (lambda a, b: torch.einsum("...qd,...dr", a, b), (2, 3, 9, 32), (2, 3, 32, 5)),
    (lambda a, b: torch.einsum(a, [0, 1], b, [1, 2], [0, 2]), (9, 32), (32, 5)),
    (lambda a, b: torch.einsum("bhqd,bhkd->bhqk", [a, b.mT]), (2, 3, 9, 32), (2, 3, 32, 5)),
]


@pytest.mark.parametrize(("function", "left", "right"), PRODUCTS)
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4w-mxfp6"])
def test_every_way_to_write_a_product_is_the_product(
    function: Any, left: tuple[int, ...], right: tuple[int, ...], name: str
) -> None:
    tensors = drawn(left, right)
    precision = LayerPrecision(recipe(name))
    expected = made(lambda a, b: attention_product(a, b, precision).float(), name)
    found = narrow_products(made(function, name))
    assert same(results(found, tensors), results(expected, tensors))
    assert not torch.equal(results(made(function, name), tensors)[0], results(found, tensors)[0])


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda a, b: a @ b, [(9, 32), (32,)]),
        (lambda a, b: (b @ a.mT).sum() + a, [(9, 32), (32,)]),
        (lambda a, b: a @ b, [(2, 3, 9, 32), (3, 32, 5)]),  # one batch for several
        (lambda a, b: a @ b, [(2, 9, 32), (32, 5)]),
        (lambda a, b: b @ a.mT, [(2, 9, 32), (4, 32)]),
        (lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5, alpha=2), [(4, 9, 32), (4, 32, 5), (9, 5)]),
        (lambda a, b, c: torch.addmm(c, mat1=a, mat2=b), [(9, 32), (32, 5), (5,)]),
        (lambda a, b: torch.einsum("bqd,bkd->bkq", a, b), [(2, 9, 32), (2, 5, 32)]),
        (lambda a, b: torch.einsum("qbd,kd->bqk", a, b), [(2, 9, 32), (5, 32)]),
        (lambda a, b: torch.einsum("bqd,bkd", a, b), [(2, 9, 32), (2, 5, 32)]),
        (lambda a, b: torch.einsum("bqd,ed->be", a, b), [(2, 9, 32), (5, 32)]),  # sums over q alone, too
        (lambda a, b: torch.einsum("...d,...d->...", a, b), [(2, 9, 32), (2, 9, 32)]),
        (functional.linear, [(2, 9, 32), (7, 32)]),
        (
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3),
            [(2, 4, 9, 32), (2, 2, 11, 32), (2, 2, 11, 16)],
        ),
        (
            lambda q, k, v: functional.scaled_dot_product_attention(
                q, k, v, attn_mask=torch.ones(9, 11, dtype=torch.bool).tril(1)
            ),
            [(2, 4, 9, 32), (2, 4, 11, 32), (2, 4, 11, 16)],
        ),
        (
            lambda q, k, v: functional.scaled_dot_product_attention(
                q, k, v, torch.linspace(-1, 1, 11).expand(9, 11)
            ),
            [(2, 4, 9, 32), (2, 4, 11, 32), (1, 4, 11, 16)],
        ),
    ],
)
def test_in_a_wide_recipe_they_are_those_of_torch(function: Any, shapes: list[tuple[int, ...]]) -> None:
    tensors = drawn(*shapes)
    wide = "mx:weight=fp32,activation=fp32,gradient=fp32,vector=fp32"
    expected = results(made(function, wide), tensors)
    found = results(narrow_products(made(function, wide)), tensors)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(2, 9, 32), (32, 5)]),
        (torch.mm, [(9, 32), (32,)]),
        (torch.bmm, [(9, 32), (32, 5)]),
        (torch.bmm, [(1, 9, 32), (4, 32, 5)]),  # one batch for several is for matmul
        (lambda a, b: a.mv(b), [(9, 32), (32, 1)]),
        (torch.dot, [(9, 32), (32,)]),
        (torch.addmm, [(2, 9, 5), (9, 32), (32, 5)]),  # more than the product has
        (torch.addmm, [(9, 5), (1, 9, 32), (1, 32, 5)]),
        (torch.baddbmm, [(9, 5), (9, 32), (32, 5)]),
        (torch.addmv, [(9,), (9, 32), (32, 1)]),
    ],
)
def test_shapes_that_torch_refuses_are_refused(function: Any, shapes: list[tuple[int, ...]]) -> None:
    tensors = drawn(*shapes)
    refused = (RuntimeError, IndexError)  # as torch has it
    with pytest.raises(refused):
        function(*tensors)
    with pytest.raises(refused):
        narrow_products(made(function, "mxfp8"))(*tensors)


class Head(nn.Module):
    """An embedding whose weight gives the logits, a matrix of its own, and angles over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(11, 32), nn.Linear(32, 32)
        self.matrix = nn.Parameter(torch.linspace(-1, 1, 32 * 32).reshape(32, 32))
        self.angles = Inner(lambda f, p: f[:, None] @ p[None].float())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.embedding(tokens)).float()
        x = x + torch.sin(self.angles(torch.linspace(0.1, 1, 32), torch.arange(tokens.shape[1]))).T
        return functional.linear(x @ self.matrix, self.embedding.weight)


def test_parameters_are_weights_those_excluded_stay_and_angles_are_exact() -> None:
    torch.manual_seed(0)
    plain = Head()
    tokens = torch.arange(11)[None]
    model = narrow_products(fb.prepare(copy.deepcopy(plain), "mxfp4", exclude="matrix"))
    x = model.layer(model.embedding(tokens)).float()
    x = x + torch.sin(torch.outer(torch.arange(11).float(), torch.linspace(0.1, 1, 32)))
    precision = LayerPrecision(recipe("mxfp4"))
    expected = linear(x @ model.matrix, model.embedding.weight, None, precision).float()
    assert torch.equal(model(tokens), expected)
    assert [entry.name for entry in model.fewbits_wide] == ["matrix"]


def test_a_view_of_an_excluded_matrix_stays_wide_too() -> None:
    class Turned(Head):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.matrix.mT

    x, plain = torch.randn(9, 32), Turned()
    model = narrow_products(fb.prepare(copy.deepcopy(plain), "mxfp4", exclude="matrix"))
    assert torch.equal(model(x), plain(x))


def test_what_is_excluded_stays_wide_and_outside_forward_nothing_is_seen() -> None:
    tensors = drawn((9, 32), (32, 5))
    left = narrow_products(made(torch.mm, "mxfp8"), exclude="inner")
    assert same(results(left, tensors), results(made(torch.mm, "mxfp8"), tensors))
    model = narrow_products(made(torch.mm, "mxfp8"))
    model(*tensors)
    assert torch.equal(tensors[0] @ tensors[1], torch.mm(*tensors))
    alone = model.inner(*tensors)  # called by itself
    assert not torch.equal(alone, torch.mm(*tensors))
    assert torch.equal(alone, narrow_products(made(torch.mm, "mxfp8")).inner(*tensors))
    assert torch.equal(tensors[0] @ tensors[1], torch.mm(*tensors))


@pytest.mark.parametrize("recipe", ["mxfp8", "posit8"])
def test_threads_do_not_see_each_others_products(recipe: str) -> None:
    tensors, model = drawn((9, 32), (32, 5)), narrow_products(made(torch.mm, recipe))
    expected, found = model(*tensors), []

    def run() -> None:
        for _ in range(20):
            found.append(torch.equal(model(*tensors), expected))
            found.append(torch.equal(tensors[0] @ tensors[1], torch.mm(*tensors)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert all(found)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("recipe", ["mxfp8", "mx6"])
def test_what_is_computed_again_for_gradients_is_as_narrow(recipe: str, reentrant: bool) -> None:
    tensors, model = drawn((9, 32), (32, 5)), made(torch.mm, recipe)

    class Again(nn.Module):
        fewbits_recipe, fewbits_wide = model.fewbits_recipe, model.fewbits_wide

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = checkpoint(self.model, *x, use_reentrant=reentrant)
            return result

    def backward(of: nn.Module) -> list[Tensor]:
        of.zero_grad()
        given = [x.detach().requires_grad_() for x in tensors]
        of(*given).square().sum().backward()
        return [x.grad for x in (*given, *of.parameters()) if x.grad is not None]

    expected = backward(narrow_products(copy.deepcopy(model)))
    assert len(expected) == 4
    assert not same(backward(copy.deepcopy(model)), expected)
    assert same(backward(narrow_products(Again())), expected)


def test_an_interrupted_forward_is_forgotten_by_the_next() -> None:
    tensors, model = drawn((9, 32), (32, 5)), narrow_products(made(torch.mm, "mxfp8"))
    expected = model(*tensors)
    with mock.patch.object(type(model.inner), "forward", side_effect=KeyboardInterrupt):  # noqa: SIM117
        with pytest.raises(KeyboardInterrupt):
            model(*tensors)
    assert torch.equal(model(*tensors), expected)
    assert torch.equal(tensors[0] @ tensors[1], torch.mm(*tensors))


@pytest.mark.parametrize("shapes", [((3, 1), (1, 5)), ((3, 5), (2, 1)), ((1,), (4,))])
def test_inner_broadcasts_no_more_than_torch_does(shapes: tuple[tuple[int, ...], ...]) -> None:
    tensors = [torch.ones(shape) for shape in shapes]
    model = narrow_products(made(torch.inner, "mxfp8"))
    with pytest.raises(RuntimeError, match="last dimension must match"):
        model.inner(*tensors)


# Each function, the shapes of its arguments, and the same as one product of matrices.
UNROLLED: list[tuple[Any, list[tuple[int, ...]], Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]] = [
    (torch.mv, [(9, 32), (32,)], lambda a, b: (a, b[:, None])),
    (lambda a, b: a.mv(vec=b), [(9, 32), (32,)], lambda a, b: (a, b[:, None])),
    (lambda a, b: torch.addmv(torch.zeros(9), a, b), [(9, 32), (32,)], lambda a, b: (a, b[:, None])),
    (torch.dot, [(32,), (32,)], lambda a, b: (a[None], b[:, None])),
    (lambda a, b: a.vdot(b), [(32,), (32,)], lambda a, b: (a[None], b[:, None])),
    (torch.inner, [(9, 32), (5, 32)], lambda a, b: (a, b.T)),
    (
        lambda a, b: a.inner(other=b),
        [(2, 9, 32), (3, 5, 32)],
        lambda a, b: (a.flatten(0, 1), b.flatten(0, 1).T),
    ),
    (torch.linalg.matmul, [(9, 32), (32, 5)], lambda a, b: (a, b)),
    (torch.tensordot, [(9, 4, 8), (4, 8, 5)], lambda a, b: (a.flatten(1), b.flatten(0, 1))),
    (
        lambda a, b: torch.tensordot(a, b, dims=([1, 0], [2, 0])),
        [(4, 8, 9), (4, 5, 8)],
        lambda a, b: (a.permute(2, 1, 0).flatten(1), b.permute(2, 0, 1).flatten(0, 1)),
    ),
    (
        lambda a, b: torch.einsum("ij,jk->ik", a, b),  # torch broadcasts the one value
        [(9, 1), (32, 5)],
        lambda a, b: (a.expand(9, 32), b),
    ),
    (lambda a, b: torch.einsum("bi,bj->ij", a, b), [(32, 9), (1, 5)], lambda a, b: (a.T, b.expand(32, 5))),
    (lambda a, b: torch.einsum("iij,jk->ik", a, b), [(9, 9, 32), (32, 5)], lambda a, b: (a.diagonal().T, b)),
    (lambda a, b: torch.einsum("xij,jk->ik", a, b), [(3, 9, 32), (32, 5)], lambda a, b: (a.sum(0), b)),
    (functional.linear, [(9, 32), (32,)], lambda a, b: (a, b[:, None])),
    (functional.linear, [(32,), (5, 32)], lambda a, b: (a[None], b.T)),
]


class Shaped(nn.Module):
    """A function of two tensors, in a model that has a layer, too."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(2, 2), Inner(function)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = self.inner(a, b)
        return result


@pytest.mark.parametrize(("function", "shapes", "unrolled"), UNROLLED)
def test_vectors_and_contractions_have_the_bits_of_one_product_of_matrices(
    function: Any, shapes: list[tuple[int, ...]], unrolled: Any
) -> None:
    precision = LayerPrecision(recipe("mxfp4"))
    found = narrow_products(fb.prepare(Shaped(function), "mxfp4"))
    wide = fb.prepare(Shaped(function), "mxfp4")
    a, b = drawn(*shapes)
    left, right = unrolled(a, b)
    if function is functional.linear:  # whose second operand is a weight
        expected = linear(left, right.T, None, precision).float()
    else:
        expected = attention_product(left, right, precision).float()
    y = found(a, b)
    assert y.shape == function(a, b).shape
    assert y.dtype == torch.float32
    assert torch.equal(y.flatten(), expected.flatten())
    weights = torch.linspace(-1, 1, y.numel())
    of_found = torch.autograd.grad((y.flatten() * weights).sum(), [a, b])
    by_hand = torch.autograd.grad((expected.flatten() * weights).sum(), [a, b])
    assert same(list(of_found), list(by_hand))
    assert not torch.equal(wide(a, b), y)  # the control


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda a, b: torch.linalg.multi_dot([a, b]), "linalg_multi_dot"),
        (lambda a, b: torch.zeros(9, 5).addmm_(a, b), "addmm_"),
        (lambda a, b: functional.conv1d(a.mT[None], b.T[:, :, None]), "conv1d"),
        (lambda a, _: torch.linalg.matrix_power(a[:, :9], 3), "linalg_matrix_power"),
        (lambda a, _: a.cov(), "cov"),
        (lambda a, _: torch.corrcoef(a), "corrcoef"),
        (lambda a, _: torch.gru_cell(a, a, torch.ones(96, 32), torch.ones(96, 32)), "gru_cell"),
    ],
)
def test_functions_that_stay_wide_are_named(function: Any, name: str) -> None:
    a, b = (x.detach() for x in drawn((9, 32), (32, 5)))
    model = narrow_products(fb.prepare(Shaped(function), "mxfp8"))
    with pytest.warns(UserWarning, match=f"the products of {name} in inner stay wide"):
        model(a, b)
    narrow_products(fb.prepare(Shaped(function), "mxfp8"), exclude="inner")(a, b)  # in silence


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.matmul, "matmul"), (torch.mm, "mm"), (torch.sparse.mm, "_sparse_mm")],
    ids=["matmul", "mm", "sparse"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # torch's
def test_products_with_sparse_tensors_stay_wide_and_say_so(
    function: Any, name: str, layout: torch.layout
) -> None:
    a, b = (x.detach() for x in drawn((9, 32), (32, 5)))
    a = a.relu().to_sparse(layout=layout)
    model = narrow_products(fb.prepare(Shaped(function), "mxfp8:vector=fp32"))
    with pytest.warns(UserWarning, match=f"the products of {name} with a sparse tensor in inner stay wide"):
        assert torch.equal(model(a, b), function(a, b))


def test_names_of_arguments_are_those_of_torch() -> None:
    tensors = drawn((9, 32), (32, 5))
    by_name = narrow_products(made(lambda a, b: torch.matmul(input=a, other=b), "mxfp8"))
    assert same(results(by_name, tensors), results(narrow_products(made(torch.matmul, "mxfp8")), tensors))


def test_after_an_error_in_forward_everything_is_as_it_was() -> None:
    tensors = drawn((9, 32), (32, 5))
    model = narrow_products(made(torch.mm, "mxfp8"))
    expected = model(*tensors)
    with pytest.raises(RuntimeError):
        model(tensors[0], tensors[0])
    assert torch.equal(tensors[0] @ tensors[1], torch.mm(*tensors))
    assert torch.equal(model(*tensors), expected)


def test_a_copy_is_narrow_by_itself() -> None:
    tensors = drawn((9, 32), (32, 5))
    model = narrow_products(made(torch.mm, "mxfp8"))
    assert torch.equal(copy.deepcopy(model)(*tensors), model(*tensors))


def test_a_query_that_may_attend_to_nothing_gives_zero() -> None:
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[3] = False
    model = narrow_products(
        made(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, mask), "mxfp8")
    )
    tensors = drawn(*[(1, 2, 9, 32)] * 3)
    found = results(model, tensors)
    assert not found[0][:, :, 3].any()
    assert all(bool(x.isfinite().all()) for x in found)


def test_keys_and_values_of_other_numbers_of_heads_are_repeated_each_as_often_as_it_takes() -> None:
    q, k, v = drawn((2, 6, 9, 32), (2, 2, 9, 32), (2, 3, 9, 32))
    grouped = made(lambda *t: functional.scaled_dot_product_attention(*t, enable_gqa=True), "mxfp8")
    plain = made(functional.scaled_dot_product_attention, "mxfp8")
    repeated = narrow_products(plain)(q, k.repeat_interleave(3, 1), v.repeat_interleave(2, 1))
    assert torch.equal(narrow_products(grouped)(q, k, v), repeated)


def test_what_cannot_be_is_refused() -> None:
    a, b = drawn((9, 32), (32, 5))
    with pytest.raises(fb.ArgumentError, match="was not prepared"):
        narrow_products(nn.Linear(2, 2))
    with pytest.raises(fb.ArgumentError, match="narrow already"):
        narrow_products(narrow_products(made(torch.mm, "mxfp8")))
    with pytest.raises(fb.ArgumentError, match="include='nobody' fits no module"):
        narrow_products(made(torch.mm, "mxfp8"), include="nobody")
    three = narrow_products(made(lambda a, b: torch.einsum("ij,jk,kl->il", a, b, b.mT), "mxfp8"))
    with pytest.raises(fb.ArgumentError, match="multiplies 3 tensors"):
        three(a, b)
    integers = torch.ones(9, 9, dtype=torch.uint8)  # which torch refuses: are they added, or do they mask?
    masked = made(lambda *t: functional.scaled_dot_product_attention(*t, integers), "mxfp8")
    with pytest.raises(RuntimeError, match="attn_mask dtype"):
        narrow_products(masked)(*drawn(*[(1, 2, 9, 32)] * 3))
    out = narrow_products(made(lambda a, b: torch.mm(a, b, out=torch.empty(9, 5)), "mxfp8"))
    with pytest.raises(fb.ArgumentError, match="with out="):
        out(a.detach(), b.detach())
    with pytest.raises(fb.ArgumentError, match=r"torch.compile with narrow_products"):
        torch.compile(narrow_products(made(torch.mm, "mxfp8")), backend="eager")(a, b)
    both = narrow_products(
        made(
            lambda *t: functional.scaled_dot_product_attention(*t, torch.zeros(9, 9), is_causal=True), "mxfp8"
        )
    )
    with pytest.raises(fb.ArgumentError, match="give one of them"):
        both(a, a, a)


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_a_model_of_hugging_face_attends_narrow(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation=kind,
    )  # fmt: skip
    wide = transformers.LlamaForCausalLM(config)
    ids = torch.arange(40)[None]
    narrow = narrow_products(fb.prepare(copy.deepcopy(wide), "mxfp8:vector=fp32"))
    only_layers = fb.prepare(copy.deepcopy(wide), "mxfp8:vector=fp32")
    exact, with_products, without = (m(ids).logits for m in (wide, narrow, only_layers))

    def error(x: Tensor) -> float:
        return float((x - exact).norm() / exact.norm())

    assert (
        0 < error(without) < error(with_products) < 0.1
    )  # positions are exact: their angles sum over nothing
    narrow.train()(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in narrow.parameters())


def test_bits_of_dropout_are_those_of_torch() -> None:
    q, k, v = drawn(*[(1, 1, 64, 32)] * 3)
    model = narrow_products(
        made(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5), "mxfp8")
    )
    torch.manual_seed(3)
    one = model(q, k, v)
    torch.manual_seed(3)
    assert torch.equal(model(q, k, v), one)
    assert not torch.equal(model(q, k, v), one)
    assert math.isfinite(float(one.detach().sum()))


def test_a_product_of_fewbits_itself_is_rounded_once() -> None:
    a, b = drawn((9, 32), (32, 5))
    precision = LayerPrecision(recipe("fp8-stochastic"))
    found = []
    for change in (lambda m: m, narrow_products):
        model = change(made(lambda x, y: attention_product(x, y, precision), "fp8-stochastic"))
        found.append([*results(model, [a, b]), torch.rand(1)])  # nothing else was drawn
    assert same(*found)
