"""Bytes shared out among tensors: within the bound always, and as few as brute force finds."""

from fractions import Fraction
from itertools import product
from math import inf, isfinite, nan

from hypothesis import given
from hypothesis import strategies as st

from fewbits.compare.allocation import Choice, allocate, allocate_within

choices = st.lists(st.tuples(st.integers(1, 30), st.floats(0, 8)), min_size=0, max_size=4).map(
    lambda found: [Choice(40, 0.0), *(Choice(*pair) for pair in found)]
)


def cost(tensors: list[list[Choice]], chosen: tuple[int, ...]) -> tuple[int, Fraction]:
    picked = [of[k] for of, k in zip(tensors, chosen, strict=True)]
    return sum(c.bytes for c in picked), sum((Fraction(c.noise) for c in picked), Fraction(0))


@given(st.lists(choices, max_size=4), st.floats(0, 20))
def test_the_bound_holds_and_no_choice_within_it_takes_fewer_bytes(
    tensors: list[list[Choice]], bound: float
) -> None:
    every = [cost(tensors, chosen) for chosen in product(*(range(len(of)) for of in tensors))]
    size, noise = cost(tensors, tuple(allocate(tensors, bound)))
    little = Fraction(bound) / 2**46
    assert noise <= bound + little
    assert min(size for size, noise in every if noise <= bound + little) <= size
    assert size <= min(size for size, noise in every if noise <= bound)


def test_what_sums_of_noise_round_off_decides_nothing() -> None:
    tiny, whole = [Choice(40, 0.0), Choice(1, 5e-92)], [Choice(40, 0.0), Choice(1, 1.0)]
    assert allocate([[Choice(40, 0.0)], whole, tiny], 1.0) == [0, 1, 1]
    thirds = [Choice(40, 0.0), Choice(1, 0.1)]
    assert allocate([thirds] * 3, 0.3) == [1, 1, 1]  # 0.1 + 0.1 + 0.1 is above 0.3 in float64


def test_what_no_step_along_the_hulls_reaches_is_found() -> None:
    tensors = [
        [Choice(40, 0.0), Choice(7, 4.0), Choice(19, 6.0)],
        [Choice(40, 0.0), Choice(14, 3.0), Choice(4, 4.0)],
    ]
    assert allocate(tensors, 7.0) == [1, 1]  # (14, 3) lies above the hull; steps along it end at 44 bytes


def test_noise_without_a_bound_hides_no_other_and_a_bound_of_nan_allows_none() -> None:
    tensors = [[Choice(40, 0.0), Choice(9, 1e300), Choice(8, inf), Choice(20, 1.0)]] * 2
    assert allocate(tensors, 2.0) == [3, 3]
    assert allocate(tensors, nan) == [0, 0]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 30), st.floats(0, 8) | st.sampled_from([0.0, inf, nan])),
            min_size=1,
            max_size=4,
        ).map(lambda found: [Choice(*pair) for pair in found]),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 90),
)
def test_noise_without_a_bound_is_taken_as_seldom_as_can_be(tensors: list[list[Choice]], spare: int) -> None:
    most = sum(min(c.bytes for c in of) for of in tensors) + spare

    def judged(chosen: tuple[int, ...]) -> tuple[int, float]:
        noise = [of[k].noise for of, k in zip(tensors, chosen, strict=True)]
        return sum(not isfinite(n) for n in noise), sum(n for n in noise if isfinite(n))

    every = product(*(range(len(of)) for of in tensors))
    best = min(judged(c) for c in every if cost_bytes(tensors, c) <= most)
    found = tuple(allocate_within(tensors, most))
    assert cost_bytes(tensors, found) <= most
    assert judged(found)[0] == best[0]
    assert judged(found)[1] <= best[1] + 1e-9


def cost_bytes(tensors: list[list[Choice]], chosen: tuple[int, ...]) -> int:
    return sum(of[k].bytes for of, k in zip(tensors, chosen, strict=True))


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 8)), max_size=6), st.floats(0, 8))
def test_one_tensor_takes_the_fewest_bytes_that_do(found: list[tuple[int, float]], bound: float) -> None:
    of = [Choice(40, 0.0), *(Choice(*pair) for pair in found)]
    (chosen,) = allocate([of], bound)
    assert of[chosen].bytes == min(c.bytes for c in of if c.noise <= bound)


def test_a_step_that_a_later_one_makes_unnecessary_is_undone_by_as_many_bytes_as_it_can() -> None:
    steep = [Choice(30, 0.0), Choice(10, 2.0), Choice(20, 1.0)]  # removes most noise per byte, and too little
    enough = [Choice(1000, 0.0), Choice(10, 10.0)]
    assert allocate([steep, enough], 2.0) == [1, 0]


def test_a_large_tensor_takes_fewer_bits_than_a_small_one() -> None:
    # Noise falls by four with each bit; the sixteenfold tensor is left two bits behind the other.
    def of(size: int) -> list[Choice]:
        return [Choice(32 * size, 0.0), *(Choice(bits * size, 4.0**-bits) for bits in range(1, 9))]

    large, small = allocate([of(1600), of(100)], 1.1 * 4.0**-5)
    assert (large, small) == (5, 7)
    # The control: the same format for both, as a bound for each tensor asks for, takes more bytes.
    assert of(1600)[large].bytes + of(100)[small].bytes < of(1600)[6].bytes + of(100)[6].bytes
