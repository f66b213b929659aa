"""Runs kernels of Triton and prints where they differ from the definition: ``compared.py WHAT [FIRST LAST]``.

A process of its own: on a GPU, or with ``TRITON_INTERPRET=1``, which Triton reads when it is imported, on the
CPU by its interpreter. Each line that is printed is a difference; the last says how many cases ran.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

import fewbits as fb
from fewbits.formats import Block, Format, parse
from fewbits.kernels import active_backend
from fewbits.kernels.bits.layout import packed
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.bits.scale_rules import SCALE_RULES
from fewbits.kernels.ops import by_triton
from fewbits.kernels.reference.feedback.feedback import quantize_with_feedback as feedback_by_definition
from fewbits.kernels.reference.top_k.top_k import top_k as top_k_by_definition
from fewbits.kernels.reference.values.stochastic import draws as draw
from fewbits.kernels.triton.dequantize.dequantize import dequantize, dequantize_add
from fewbits.kernels.triton.gemm.product import multiplies, product, scales_products
from fewbits.kernels.triton.gemv import gemv as vectors
from fewbits.kernels.triton.gemv.gemv import gemv
from fewbits.kernels.triton.quantize import quantize as kernels
from fewbits.kernels.triton.quantize import rounding
from fewbits.kernels.triton.quantize.both_axes import quantize_both, quantizes_both
from fewbits.kernels.triton.quantize.quantize import empty, fake_quantize, quantize, quantize_with_feedback
from fewbits.kernels.triton.top_k import top_k as ranks
from fewbits.kernels.triton.values.spec import spec
from tests import cases
from tests.native.definition import defined, difference, possible

np.seterr(all="ignore")  # NumPy computes what chips compute without a word
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    import tests.kernels.triton.fast_interpreter  # noqa: F401 - it changes the interpreter
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter multiplies by block scales, as some chips do.
SCALES = INTERPRETED or scales_products(torch.device(DEVICE, 0))

Sentences = Iterator[str | None]

# Formats of the grammar for what no published one has.
_MADE = (
    "block(element=float(e=2,m=1),scale=e8m0,size=20)",
    "block(element=float(e=4,m=3,special=fn),scale=fp32,size=2048)",
    "block(element=float(e=4,m=3,special=fn),scale=e8m0,size=tensor)",
    "bdr(m=5,d1=6,k1=8,d2=3,k2=4)",
    "block(element=lookup(-1,-0.5,0,0.3,1),scale=e8m0,size=32)",
    "block(element=lookup(-1,-0.5,0,0.3,1),scale=fp32,size=channel)",
    "block(element=posit(8,es=1),scale=e8m0,size=16)",
    "block(element=fixed(24,frac=20),scale=e8m0,size=16)",
    "block(element=int(3),scale=exponent(5,bias=15),size=6)",
    "block(element=posit(8),scale=float(e=2,m=1,bias=20),size=16)",  # quotients beyond float32
)
_FAR = ("float(e=5,m=2,bias=116)", "float(e=5,m=2,bias=-85)")  # near the ends of float32
_NOT_RAISED = dict.fromkeys(
    ("fp4_e2m1", "int8", "uint4", "fixed16_f10", "int8_tensor", "ternary", _MADE[4], *_FAR), "saturate"
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Several programs each, and no more: the interpreter takes a tenth of a second for one.
_SHAPES = ((33,), (3, 40), (2, 1, 33), (2, 3, 2, 9), (), (35, 3), (2, 192), (3, 512))


def _rows() -> list[tuple[Any, ...]]:
    """Return rows of choices: first one for each format, of other choices each, then all others."""
    formats = [*cases.FORMATS, *map(parse, _MADE)]
    rows = cases.pairs(
        formats,
        cases.ROUNDINGS,
        cases.SCALE_RULES,
        cases.OVERFLOWS,
        cases.NONFINITES,
        cases.ZERO_BLOCKS,
        (16, 32),
        ("normal", "wide", "zeros", "telling"),
        _DTYPES,
        _SHAPES,
        (0, -1, 1),
        ("ordered", "transposed", "stepped", "cut"),
    )
    of_format = [[row for row in rows if row[0] == fmt] for fmt in formats]
    first = [own[7 * i % len(own)] for i, own in enumerate(of_format)]
    return [*first, *(row for row in rows if row not in first)]


def _chosen(fmt: Format, choices: dict[str, Any]) -> Options:
    """Return the options of a row, without those that the format does not have."""
    for last in ((), ("scale_rule",), ("random_bits",), ("scale_rule", "random_bits")):
        for first in ((), ("overflow",), ("nonfinite",), ("overflow", "nonfinite")):
            kept = {k: v for k, v in choices.items() if k not in (*first, *last)}
            found = possible(fmt, **kept)
            if found is not None:
                return found
    raise AssertionError(fmt)


def _values(kind: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str, finite: bool) -> torch.Tensor:
    count = int(np.prod(shape))
    rng = np.random.default_rng(count)
    x = rng.standard_normal(count).astype(np.float32)
    if kind == "wide":
        x = cases.every_exponent(count, seed=count)
    elif kind == "telling":
        x = np.resize(cases.telling(parse("fp8_e4m3")), count).astype(np.float32)
    elif kind == "zeros":
        x = np.zeros(count, np.float32)
        x[::7], x[count // 2] = -0.0, 1e-3
    y = torch.tensor(x).to(DEVICE, dtype).reshape(shape)
    if finite:
        y = y.nan_to_num(0.0, 6e4, -6e4)
    if layout == "transposed":
        y = y.reshape(shape[::-1]).permute(tuple(range(y.ndim))[::-1])
    elif layout in ("stepped", "cut") and y.ndim:
        wide = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype, device=DEVICE)
        kept = wide[..., ::2] if layout == "stepped" else wide[..., : shape[-1]]
        kept.copy_(y)
        y = kept
    return y


def _decisive() -> Sentences:
    """Compare what few rows of the table meet: ties, maxima on the step of a rule, and blocks cut short."""
    for name, rule in (("mxfp4", "even"), ("mxfp8_e4m3", "1.75"), (_MADE[0], "floor"), (_MADE[8], "rceil")):
        fmt = parse(name)
        assert isinstance(fmt, Block)
        assert isinstance(fmt.size, int)
        step = float(SCALE_RULES[rule](fmt.element).step)
        telling = cases.telling(fmt.element)
        x = torch.from_numpy(np.resize(telling, (7, 45))).to(DEVICE).clamp(-fmt.element.max, fmt.element.max)
        x[:, :: fmt.size] = fmt.element.max  # the scale is one, and values in the middle are ties
        x[1, :: fmt.size] = step * 2.0**5
        x[2, :: fmt.size] = float(np.nextafter(np.float32(step * 2.0**5), np.float32(0)))
        x[3:, fmt.size : 2 * fmt.size] *= 16  # of neighbours each has its own
        row = ("nearest_even", rule, "saturate", "saturate", "smallest", 16)
        wide = torch.zeros(7, 90, device=DEVICE)
        wide[:, :45] = x
        for axis, given in ((1, x), (0, x), (1, wide[:, :45]), (0, wide[:, :45])):
            chosen = Options(*row)
            wanted = defined(_array(given), fmt, axis, chosen)
            found = fake_quantize(given, fmt, axis, chosen)
            yield difference(_array(given), _array(found), wanted.values, f"{name}, {rule}, axis {axis}")
            for mine, theirs in zip(quantize(given, fmt, axis, chosen), wanted.parts, strict=True):
                if mine is not None and theirs is not None:
                    yield difference(None, _array(mine), theirs, f"{name}, {rule}, axis {axis}: packed")
    # No two axes are one.
    x = torch.arange(2 * 3 * 40, dtype=torch.float32, device=DEVICE).reshape(2, 3, 40)[:, :, :17]
    fmt = parse("mxfp4")
    wanted = defined(_array(x), fmt, 0, options(fmt))
    yield difference(None, _array(fake_quantize(x, fmt, 0, options(fmt))), wanted.values, "axes with gaps")


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return the same normal values on every device."""
    return torch.randn(shape, generator=generator).to(DEVICE)


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


def _array(x: torch.Tensor) -> Any:
    """Return a tensor as the definition takes it."""
    whole = x.cpu().contiguous()
    return whole.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else whole.numpy()


def _conversion(row: tuple[Any, ...]) -> Sentences:
    fmt, rounding, rule, overflow, nonfinite, zero, random_bits, kind, dtype, shape, axis, layout = row
    chosen = _chosen(
        fmt,
        {
            "rounding": rounding,
            "scale_rule": rule,
            "overflow": overflow,
            "nonfinite": nonfinite,
            "zero_block": zero,
            "random_bits": random_bits,
        },
    )
    if spec(fmt, chosen) is None:
        yield f"{fmt} is not supported"
        return
    x = _values(kind, shape, dtype, layout, chosen.nonfinite == "raise")
    axis = axis if -x.ndim <= axis < x.ndim else 0
    wanted = defined(_array(x), fmt, axis, chosen)
    where = f"{fmt}, {chosen.text}, {kind} {dtype} {shape}, axis {axis}, {layout}"
    yield difference(
        _array(x), _array(fake_quantize(x, fmt, axis, chosen)), wanted.values, f"{where}: values"
    )
    parts = quantize(x, fmt, axis, chosen)
    for mine, theirs in zip(parts, wanted.parts, strict=True):
        if mine is not None and theirs is not None:
            yield difference(None, _array(mine), theirs, f"{where}: packed")
    back = dequantize(parts, fmt, tuple(shape), axis, dtype)
    yield difference(None, _array(back), wanted.values, f"{where}: values of codes")


def _amax() -> Sentences:
    x = _normal(_seeded(1), 3, 40)
    for name in ("int8_tensor", "nvfp4", "fp8_e4m3_tensor"):
        fmt = parse(name)
        wanted = defined(_array(x), fmt, 1, options(fmt), 7.5)
        yield difference(None, _array(fake_quantize(x, fmt, 1, options(fmt), 7.5)), wanted.values, name)


def _both_axes() -> Sentences:
    x = _normal(_seeded(2), 70, 45)
    for name, other in (("mxfp4", "mxfp8_e4m3"), ("mx9", "mx9")):
        rows, columns = ((parse(n), options(parse(n), rounding="stochastic", seed=5)) for n in (name, other))
        if not quantizes_both(rows, columns):
            yield f"{name} and {other} are not rounded together"
            continue
        for axis, found, (fmt, chosen) in zip(
            (1, 0), quantize_both(x, rows, columns), (rows, columns), strict=True
        ):
            wanted = defined(_array(x), fmt, axis, chosen).parts
            for mine, theirs in zip(found, wanted, strict=True):
                if mine is not None and theirs is not None:
                    yield difference(None, _array(mine), theirs, f"{fmt} along axis {axis}")


def _feedback() -> Sentences:
    rng = _seeded(3)
    for name, dtype in (
        ("mxfp4", torch.bfloat16),
        ("int8_tensor", torch.float32),
        ("fp8_e5m2", torch.float16),
    ):
        fmt, x, residual = parse(name), _normal(rng, 70), _normal(rng, 70) / 10
        x[3] = torch.inf
        x = x.to(dtype)
        chosen = options(fmt)
        wanted, left = feedback_by_definition(_array(x), _array(residual).copy(), fmt, chosen)
        parts = empty(fmt, (70,), 0, x.device)
        quantize_with_feedback(x, residual, fmt, chosen, parts)
        yield difference(None, _array(residual), left, f"{name}: what is left over")
        for mine, theirs in zip(parts, packed(wanted, fmt), strict=True):
            if mine is not None and theirs is not None:
                yield difference(None, _array(mine), theirs, f"{name} with feedback")
        into = _normal(rng, 70)
        total = into + dequantize(parts, fmt, (70,), 0, torch.float32)
        dequantize_add(parts, fmt, into)
        yield difference(None, _array(into), _array(total), f"{name}: added")


def _ranks() -> Sentences:
    ranks._BLOCK = 64  # several programs
    for dtype, count in ((torch.float32, 150), (torch.bfloat16, 100)):
        x = torch.randint(-9, 9, (count,), generator=_seeded(4)).to(DEVICE, dtype)
        x[5], x[77] = torch.nan, -torch.inf
        for k in (1, 40, count):
            found, wanted = _array(ranks.top_k(x, k)), top_k_by_definition(_array(x), k)
            yield (
                None
                if np.array_equal(found, wanted)
                else f"the {k} largest of {dtype}: {found}, not {wanted}"
            )
    with patch.object(ranks, "top_k", lambda x, k: x[:k]):  # not run, as that many values take hours
        for count, taken in ((2**31 - 1, True), (2**31, False)):
            places = by_triton.top_k(torch.zeros(1, device=DEVICE).expand(count), 1)
            yield None if (places is not None) is taken else f"the largest of {count}: {taken} is wanted"


def _bounded(found: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, what: str) -> str | None:
    """Return a sentence where ``a @ b.T`` is off by more than (k + 2) u |a| |b.T|."""
    if found is None:
        return f"{what}: there is none"
    a, b = a.detach().double(), b.detach().double()
    error = (found.detach().double() - a @ b.mT).abs()
    bound = (a.shape[-1] + 2) * 2.0**-24 * (a.abs() @ b.abs().mT)
    return None if bool((error <= bound).all()) else f"{what}: off by {float((error / bound).max())} bounds"


def _vectors() -> Sentences:
    rng = _seeded(5)
    names = (
        *("mxfp4", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxint8", "nvfp4", "mx6", "vsq8"),
        *("int4_channel", "int8_tensor", "fp8_e4m3", "fp8_e5m2fnuz", "posit8_1", _MADE[0]),
    )
    for name in names:
        for n in (70, 136, 1064):  # 136: words of 32 bits, whose last block is cut short
            fmt, w, x = parse(name), _normal(rng, 5, n), _normal(rng, 3, n)
            parts = quantize(w, fmt, 1, options(fmt, nonfinite="saturate"))
            wide = dequantize(parts, fmt, (5, n), 1, torch.float32)
            yield _bounded(gemv(x, parts, fmt, 5), x, wide, f"{name} times vectors of {n}")
            with patch.object(vectors, "is_wide", lambda *_: True):
                yield _bounded(gemv(x, parts, fmt, 5), x, wide, f"{name} times vectors of {n}, by 64 bits")
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "fp8_e4m3", "fp8_e5m2fnuz"):  # elements or scales are not finite
        w = _normal(rng, 4, 136)
        w[1, 40], w[2, 100], w[3, 3] = torch.inf, -torch.inf, torch.nan
        for nonfinite in ("element", "block_nan") if "mx" in name else ("element",):
            fmt = parse(name)
            overflow = "saturate" if fmt.element.inf_code is None else "inf"
            parts = quantize(w, fmt, 1, options(fmt, nonfinite=nonfinite, overflow=overflow))
            wide = dequantize(parts, fmt, (4, 136), 1, torch.float32)
            found, wanted = gemv(torch.ones(1, 136, device=DEVICE), parts, fmt, 4)[0], wide.sum(1)
            kinds = [(y.isnan(), y.isposinf(), y.isneginf()) for y in (found, wanted)]
            alike = all(torch.equal(*both) for both in zip(*kinds, strict=True))
            yield None if alike else f"{name}, {nonfinite}: {found.tolist()}, not {wanted.tolist()}"
    for sizes in ((2**17, 1, 2**14), (2**17, 2**14, 1), (1, 2**13, 2**13)):
        yield None if vectors.is_wide(*sizes) else f"{sizes} vectors, lines and values are counted in 32 bits"
    yield "small products are counted in 64 bits" if vectors.is_wide(2**15, 2**10, 2**15) else None


def _matrices() -> Sentences:
    rng = _seeded(6)
    pairs = (("mxfp4", "mxfp8_e5m2"), ("mxfp8_e4m3", "mxfp8_e4m3"), ("nvfp4", "nvfp4"), ("mx9", "mxint8"))
    for names in pairs:
        a_format, b_format = map(parse, names)
        if not multiplies(a_format, b_format):
            yield f"{names} are not multiplied"
            continue
        # Scales from one end to the other: their products leave float32, and sums with them need not.
        a, b = _normal(rng, 2, 3, 70) * 2.0**-90, _normal(rng, 2, 5, 70) * 2.0**80
        left, right = (
            quantize(a, a_format, -1, options(a_format)),
            quantize(b, b_format, -1, options(b_format)),
        )
        a = dequantize(left, a_format, (2, 3, 70), -1, torch.float32)
        b = dequantize(right, b_format, (2, 5, 70), -1, torch.float32)
        for by_chip in (False, True) if SCALES else (False,):
            y = product(left, a_format, right, b_format, (2, 3, 5, 70), torch.float32, by_chip=by_chip)
            yield _bounded(y, a, b, f"{names}, by chip: {by_chip}")


def _second_step() -> Sentences:
    """Yield where a block-scaled product reads wrong parts in its second step along k, of 128 values each."""
    rng = _seeded(12)
    if not SCALES:
        return
    (name, other), shapes = ("mxfp4", "mxfp8_e4m3"), ((2, 140), (3, 140))
    a, b = (_normal(rng, *shape) for shape in shapes)
    a[:, 128:] *= 64.0  # scales of the second step are others
    b[:, 128:] *= 8.0
    left, right = (quantize(x, parse(n), 1, options(parse(n))) for x, n in ((a, name), (b, other)))
    y = product(left, parse(name), right, parse(other), (1, 2, 3, 140), torch.float32, by_chip=True)
    a, b = (
        dequantize(parts, parse(n), shape, 1, torch.float32)
        for parts, n, shape in zip((left, right), (name, other), shapes, strict=True)
    )
    yield _bounded(y[0], a, b, f"{name} and {other} by chip, in two steps")


def _far_scales() -> Sentences:
    """Yield where real scales, whose product leaves float32, spoil sums that it holds."""
    rng = _seeded(10)
    for name in ("nvfp4", "block(element=float(e=4,m=3,special=fn),scale=fp32,size=32)"):
        fmt = parse(name)
        a, b = _normal(rng, 3, 70) * 2.0**124, _normal(rng, 5, 70) * 2.0**-120
        # The largest decide the scales, and meet zeros: what is left are products of the small ones.
        c, d = a.clone(), a[:2].clone()
        c[:, ::2], d[:, 1::2] = 0.0, 0.0
        for left, right in ((a, b), (b, a), (c, d)):
            m, n = len(left), len(right)
            p, q = (quantize(x, fmt, 1, options(fmt)) for x in (left, right))
            wide = [dequantize(parts, fmt, (rows, 70), 1, torch.float32) for parts, rows in ((p, m), (q, n))]
            found = product(p, fmt, q, fmt, (1, m, n, 70), torch.float32)[0]
            yield _bounded(found, wide[0], wide[1], f"{name} with far scales")


def _surface() -> Sentences:
    """Yield where fewbits' own functions, whose backend is triton here, differ from the definition."""
    if active_backend(DEVICE) != "triton":
        yield f"{active_backend(DEVICE)} is active, not triton"
    x = _normal(_seeded(7), 4, 70)
    for name in ("mxfp4", "nvfp4"):
        fmt = parse(name)
        wanted = defined(_array(x), fmt, -1, options(fmt))
        q = fb.quantize(x, name)
        yield difference(None, _array(fb.fake_quantize(x, name)), wanted.values, f"fake_quantize to {name}")
        yield difference(None, _array(q.dense()), wanted.values, f"quantize to {name}, and back")
        yield _bounded(torch.nn.functional.linear(x[:2], q), x[:2], _tensor(wanted.values), f"{name} linear")
    yield from _layer()


def _stacks() -> Sentences:
    """Yield whether stacks are launched that chips have too few programs for."""
    fmt = parse("mxfp8_e4m3")
    for count, taken in ((2, SCALES), (65536, False)):
        a, b = torch.ones(count, 1, 16, device=DEVICE), torch.ones(count, 16, 1, device=DEVICE)
        found = by_triton.rounded_product(a, b, (fmt, fmt), (options(fmt), options(fmt)), torch.float32)
        yield None if (found is not None) is taken else f"a stack of {count} products: {taken} is wanted"


def _layer() -> Sentences:
    """Yield where a layer of an MX recipe is off in its forward or backward pass."""
    torch.manual_seed(8)
    model = fb.prepare(
        torch.nn.Sequential(torch.nn.Linear(40, 33, bias=False)).to(DEVICE),
        "mx:weight=mxfp4,activation=mxfp8_e4m3,gradient=mxfp8_e5m2,vector=fp32",
    )
    x, g = _normal(_seeded(13), 35, 40).requires_grad_(), _normal(_seeded(14), 35, 33)
    (weight,) = model.parameters()
    launched: list[Any] = []
    run = by_triton.rounded_product

    def recorded(*args: Any) -> torch.Tensor | None:
        found = run(*args)
        launched.extend([] if found is None else [args])
        return found

    with patch.object(by_triton, "rounded_product", recorded):
        y = model(x)
        y.backward(g)
    expected = 3 if SCALES else 0
    yield None if len(launched) == expected else f"{len(launched)} products were Triton's, not {expected}"

    def by_definition(t: torch.Tensor, name: str, axis: int) -> torch.Tensor:
        fmt = parse(name)
        return _tensor(defined(_array(t.detach()), fmt, axis, options(fmt)).values)

    w, a, e = "mxfp4", "mxfp8_e4m3", "mxfp8_e5m2"
    yield _bounded(y, by_definition(x, a, 1), by_definition(weight, w, 1), "forward")
    yield _bounded(x.grad, by_definition(g, e, 1), by_definition(weight, w, 0).t(), "gradient of x")
    yield _bounded(
        weight.grad, by_definition(g, e, 0).t(), by_definition(x, a, 0).t(), "gradient of the weight"
    )


def _results(recipe: str) -> list[torch.Tensor]:
    """Return the result and the gradients of two layers that take one input, and one after relu."""
    torch.manual_seed(11)
    linear = [torch.nn.Linear(k, n) for k, n in ((40, 33), (40, 33), (33, 7))]
    model = fb.prepare(torch.nn.ModuleList(linear).to(DEVICE), recipe)
    first, second, last = model
    given = (_normal(_seeded(15), 5, 7, 40) * 8).requires_grad_()
    with torch.no_grad():
        given[0, 0, :3] = torch.tensor([torch.inf, 1e-30, 3e38], device=DEVICE)
        given[1, 2] = 0.0
    x = given.clone()  # a leaf is kept for each layer: nobody knows who writes into it
    y = last((first(x) + second(x)).relu())
    y.float().square().sum().backward()
    return [y, given.grad, *(p.grad for p in model.parameters())]


def _layers_by_both_axes() -> Sentences:
    """Yield where layers whose operands are packed from one read differ from layers that pack each alone."""
    launched: list[Any] = []
    run = by_triton.quantize_both

    def recorded(*args: Any) -> list[torch.Tensor]:
        launched.append(args)
        return run(*args)

    def scaled_twice(*args: Any) -> list[torch.Tensor]:
        *rest, scales = run(*args)
        return [*rest, scales + 1]

    mixed = "mx:weight=mxfp4,activation=mxfp8_e4m3,gradient=mxfp8_e5m2/rceil,vector=fp32"
    wanted_by: dict[str, list[torch.Tensor]] = {}
    for recipe, expected in (
        ("mxfp8", 5),
        (mixed, 4),  # float32 flows: both layers of one input keep it once
        ("mx:weight=mxfp4,activation=mxfp8_e4m3,gradient=mxfp6_e3m2/stochastic,vector=fp32", 1),
        ("mx9", 0),  # its products of the backward pass are torch's
        ("fp32", 0),
    ):
        launched.clear()
        with patch.object(by_triton, "quantize_both", recorded):
            found = _results(recipe)
        count = len(launched)
        yield None if count == expected else f"{recipe}: {count} operands from one read, not {expected}"
        with patch.object(by_triton, "quantizes_both", lambda *_: False):
            wanted = wanted_by[recipe] = _results(recipe)
        for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
            yield difference(None, _array(mine.detach()), _array(theirs.detach()), f"{recipe}: result {i}")
    with patch.object(by_triton, "quantize_both", scaled_twice):
        broken = _results("mxfp8")
    same = [torch.equal(*both) for both in zip(broken, wanted_by["mxfp8"], strict=True)]
    yield "scales of columns that are wrong change no gradient" if all(same[2:]) else None


def _broken() -> Sentences:
    """Yield what is found where one function of the kernels is replaced by a wrong one."""
    fmt = parse("mxfp4")
    chosen = options(fmt, rounding="stochastic", seed=3)
    wrong: tuple[tuple[Any, str, int, Callable[[Any], Any]], ...] = (
        (rounding, "shared_exponent", 40, lambda given: lambda *args: given(*args) + 1),
        (kernels, "draws", 40, lambda given: lambda p, *args: given(p + 1, *args)),
        (kernels, "draws_in_order", 64, lambda given: lambda p, *args: given(p + 128, *args)),
        (rounding, "signed_value", 64, lambda given: lambda *args: given(*args) * 1.0000001),
    )
    for module, name, n, breaks in wrong:
        x = _normal(_seeded(9), 4, n)
        with patch.object(module, name, breaks(getattr(module, name))):
            found = _array(fake_quantize(x, fmt, 1, chosen))
        yield difference(None, found, defined(_array(x), fmt, 1, chosen).values, name)


def _extreme_draws() -> Sentences:
    """Compare infinities and values next to the ends where a draw is the smallest, and where the largest."""
    places = np.arange(64)
    for end in (0, 0xFFFF):
        seed = next(seed for seed in range(10**6) if end in draw(places, seed, 16))
        at = int(np.flatnonzero(draw(places, seed, 16) == end)[0])
        for name in ("e8m0", "posit8_1", "fp8_e4m3", "fp8_e5m2", "mxfp4", *_NOT_RAISED):
            fmt = parse(name)
            random = options(fmt, rounding="stochastic", seed=seed, nonfinite=_NOT_RAISED.get(name))
            nearest = options(fmt, nonfinite=_NOT_RAISED.get(name))
            ends = (fmt.element.max, fmt.element.max / 3, fmt.element.smallest_subnormal * 1.3)
            for value in (torch.inf, -torch.inf, 3.4e38, -3.4e38, 1.7, 2.0**-149, *ends):
                x = torch.ones(1, 64, device=DEVICE)
                x[0, at] = value
                for chosen in (random, nearest):
                    wanted = defined(_array(x), fmt, 1, chosen).values
                    found = _array(fake_quantize(x, fmt, 1, chosen))
                    what = f"{name}, {chosen.rounding}, {value} where {end} is drawn"
                    yield difference(None, found, wanted, what)


def _not_finite() -> Sentences:
    """Compare blocks with a NaN or infinity by each choice of what becomes of them."""
    x = _normal(_seeded(16), 4, 64)
    x[0, 3], x[1, 40], x[2, 5], x[2, 6] = torch.nan, torch.inf, -torch.inf, torch.nan
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "mx9", "nvfp4", "fp8_e4m3_channel"):
        for nonfinite in ("element", "block_nan", "saturate"):
            fmt = parse(name)
            chosen = possible(fmt, nonfinite=nonfinite)
            if chosen is None:
                continue
            wanted, what = defined(_array(x), fmt, 1, chosen), f"{name}, {nonfinite}"
            yield difference(None, _array(fake_quantize(x, fmt, 1, chosen)), wanted.values, what)
            for mine, theirs in zip(quantize(x, fmt, 1, chosen), wanted.parts, strict=True):
                if mine is not None and theirs is not None:
                    yield difference(None, _array(mine), theirs, f"{what}: packed")


def _smallest() -> Sentences:
    """Compare the smallest numbers of a dtype, which a conversion to float32 must not lose."""
    for dtype, least in ((torch.float32, -149), (torch.bfloat16, -133), (torch.float16, -24)):
        powers = torch.arange(least, least + 10, dtype=torch.float64).exp2()
        x = torch.stack([powers, -powers]).to(DEVICE, dtype)
        for name, mode in (("bf16", "nearest_even"), (_FAR[0], "up")):
            fmt = parse(name)
            chosen = options(fmt, rounding=mode)
            wanted, what = defined(_array(x), fmt, 1, chosen).values, f"the smallest of {dtype} to {name}"
            yield difference(_array(x), _array(fake_quantize(x, fmt, 1, chosen)), wanted, what)
        for n in (70, 136):  # 136: by words of 32 bits
            fmt, vector = parse("mxfp8_e4m3"), torch.zeros(1, n, device=DEVICE, dtype=dtype)
            vector[0, 5] = 2.0**least
            parts = quantize(torch.full((2, n), 2.0**14, device=DEVICE), fmt, 1, options(fmt))
            found = gemv(vector, parts, fmt, 2).double().tolist()
            right = found == [[2.0 ** (least + 14)] * 2]
            yield None if right else f"the smallest of {dtype} times 2^14 in lines of {n}: {found}"


GROUPS: dict[str, tuple[Callable[[], Sentences], ...]] = {
    "others": (_decisive, _amax, _both_axes, _feedback, _ranks, _extreme_draws, _not_finite, _smallest),
    "products": (_vectors, _matrices, _second_step, _far_scales, _stacks, _surface),
    "layers": (_layers_by_both_axes,),
    "broken": (_broken,),
}


def found(what: str, first: int, last: int) -> Sentences:
    """Yield None or a difference for each result of a group, or of these rows of the table of conversions."""
    if what == "conversions":
        for row in _rows()[first:last]:
            yield from _conversion(row)
    else:
        for group in GROUPS[what]:
            yield from group()


if __name__ == "__main__":
    first, last = (*map(int, sys.argv[2:]), 0, 0)[:2]
    sentences = list(found(sys.argv[1], first, last))
    print(*(sentence for sentence in sentences if sentence), f"{len(sentences)} compared", sep="\n")
