"""Steps taken apart, whose spans were written by hand."""

import pytest

from fewbits.profiling.attribution import Attribution, Piece, combined, flame
from fewbits.profiling.counting import Count
from fewbits.profiling.marks import LAYER, PART, STEP
from fewbits.profiling.recording import Span
from fewbits.records.profiling import REST

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def count(*, narrows: bool = False) -> Count:
    return Count(8.0, 4.0, 2.0, False, "float32", narrows, False, False)


def span(name: str, start: int, end: int, *children: Span, sequence: int = -1) -> Span:
    return Span(name, start, end, list(children), (), sequence)


def step(*children: Span, end: int = 100) -> Span:
    return span(STEP, 0, end, *children)


def spent(pieces: list[Piece]) -> dict[tuple[str, str, str], int]:
    """Time by class, layer and name, of what took some."""
    found: dict[tuple[str, str, str], int] = {}
    for p in pieces:
        key = (p.kind, p.layer, p.name)
        found[key] = found.get(key, 0) + p.nanoseconds
    return {key: time for key, time in found.items() if time}


COUNTS = {
    ("aten::mm", ()): [count()],
    ("aten::add_", ()): [count()],
    ("aten::_to_copy", ()): [count(narrows=True)],
}


def whole() -> Span:
    layer = span(
        LAYER + "fc", 10, 30, span("aten::mm", 12, 20, sequence=7), span("fewbits::quantize", 20, 26)
    )
    backward = span(BACKWARD, 40, 60, span("MmBackward0", 41, 59, span("aten::mm", 42, 55)), sequence=7)
    update = span("Optimizer.step#SGD.step", 70, 90, span("aten::add_", 72, 88))
    return step(
        span("aten::mm", 2, 5),
        layer,
        span("aten::add_", 30, 38),
        backward,
        span("aten::add_", 61, 65),
        update,
    )


def test_each_moment_has_a_class_a_layer_and_a_name() -> None:
    assert spent(Attribution(whole(), COUNTS).pieces) == {
        ("data", "", "aten::mm"): 3,  # before the first layer
        ("forward", "fc", "aten::mm"): 8,
        ("forward", "fc", "Python"): 6,
        ("rounding", "fc", "fewbits::quantize"): 6,
        ("forward", "", "aten::add_"): 8,  # a loss, between the model and the backward pass
        ("backward", "fc", "aten::mm"): 13,  # by the number of the forward call that made it
        ("backward", "fc", "autograd"): 7,
        ("optimizer", "", "aten::add_"): 4 + 16,  # clipping, and the update
        ("optimizer", "", "Python"): 5 + 4,  # between clipping and the update, and within it
        (REST, "", "Python"): 2 + 5 + 2 + 1 + 10,
    }


def test_the_pieces_add_up_to_the_step() -> None:
    assert sum(p.nanoseconds for p in Attribution(whole(), COUNTS).pieces) == 100


def test_an_operation_that_is_hidden_from_the_classes_is_in_the_rest() -> None:
    hidden = step(span("somebody's kernel", 20, 90))
    assert spent(Attribution(hidden, {}).pieces) == {
        (REST, "", "somebody's kernel"): 70,
        (REST, "", "Python"): 30,
    }


def test_after_the_update_nothing_is_forward() -> None:
    update = span("Optimizer.step#SGD.step", 0, 10)
    assert (REST, "", "aten::mm") in spent(Attribution(step(update, span("aten::mm", 20, 30)), COUNTS).pieces)


def test_what_lies_between_two_layers_is_forward() -> None:
    layers = span(LAYER + "fc", 0, 10), span(LAYER + "head", 20, 30)
    found = spent(Attribution(step(layers[0], span("aten::mm", 10, 20), layers[1]), COUNTS).pieces)
    assert found["forward", "", "aten::mm"] == 10


def test_dropping_gradients_tells_nothing_of_what_is_around_it() -> None:
    parts = (
        span(LAYER + "fc", 0, 10),
        span("aten::mm", 10, 20),
        span("Optimizer.zero_grad#SGD.zero_grad", 20, 30),
    )
    after = span("aten::mm", 30, 40), span(BACKWARD, 40, 50)
    found = spent(Attribution(step(*parts, *after), COUNTS).pieces)
    assert found["forward", "", "aten::mm"] == 20


def test_time_between_two_of_a_class_is_theirs_and_else_nobodys() -> None:
    passes = span(BACKWARD, 10, 20), span(BACKWARD, 30, 40)
    found = spent(Attribution(step(*passes), {}).pieces)
    assert found == {("backward", "", "autograd"): 10 + 10 + 10, (REST, "", "Python"): 10 + 60}


def test_a_conversion_to_fewer_bits_is_rounding_and_another_is_not() -> None:
    layer = span(LAYER + "fc", 0, 100, span("aten::_to_copy", 0, 30), span("aten::mm", 30, 50))
    found = spent(Attribution(step(layer), COUNTS).pieces)
    assert found["rounding", "fc", "aten::_to_copy"] == 30
    assert found["forward", "fc", "aten::mm"] == 20


@pytest.mark.parametrize(
    "name", ["c10d::allreduce_", "gloo:all_reduce", "record_param_comms", "_c10d_functional::wait"]
)
def test_collectives_are_communication(name: str) -> None:
    found = spent(Attribution(step(span(BACKWARD, 0, 50, span(name, 10, 40))), {}).pieces)
    assert found["communication", "", name] == 30


def test_what_a_mark_covers_is_of_its_class_and_waiting_is_named() -> None:
    part = span(PART + "communication", 0, 60, span("aten::mm", 10, 30))
    found = spent(Attribution(step(part), COUNTS).pieces)
    assert found["communication", "", "waiting and Python"] == 40
    assert found["communication", "", "aten::mm"] == 20


def test_a_layer_that_runs_again_in_the_backward_pass_is_backward() -> None:
    again = span(BACKWARD, 0, 100, span(LAYER + "fc", 10, 90, span("aten::mm", 20, 80)))
    found = spent(Attribution(step(again), COUNTS).pieces)
    assert found["backward", "fc", "aten::mm"] == 60


def test_calls_of_one_name_take_their_counts_in_order() -> None:
    small, large = count(), Count(800.0, 4.0, 2.0, False, "float32", False, False, False)
    counts = {("aten::mm", ()): [small, large]}
    pieces = Attribution(step(span("aten::mm", 0, 1), span("aten::mm", 1, 2)), counts).pieces
    assert [p.count for p in pieces if p.name == "aten::mm"] == [small, large]


def test_a_call_that_was_not_counted_is_a_call_and_not_time_between_calls() -> None:
    inside = span("aten::mm", 0, 20, span("aten::resolve_conj", 2, 5))
    outer = span("aten::linear", 30, 90, span("own::kernel", 40, 70))
    node = span(BACKWARD, 90, 100, span("torch::autograd::AccumulateGrad", 91, 99))
    pieces = Attribution(step(inside, outer, node), {("aten::mm", ((2, 2),)): [count()]}).pieces
    calls = {p.name: (p.nanoseconds, p.count) for p in pieces if p.is_call}
    assert calls == {"aten::mm": (20, None), "own::kernel": (30, None)}
    assert ("aten::linear", 30) in {(p.name, p.nanoseconds) for p in pieces if not p.is_call}


def test_steps_on_other_shapes_are_not_alike() -> None:
    def taken(length: int) -> list[Piece]:
        one = Span("aten::mm", 0, 10, [], ((length, 2),))
        return Attribution(step(one, end=10), {("aten::mm", ((1, 2),)): [count()]}).pieces

    pieces, alike = combined([taken(1), taken(2), taken(1), taken(3)])
    assert alike == 2
    assert [p.count for p in pieces if p.is_call] == [count()]


def test_each_part_takes_its_median_over_the_steps_that_are_alike() -> None:
    def taken(*times: int) -> list[Piece]:
        ends = [sum(times[: i + 1]) for i in range(len(times))]
        spans = [span("aten::mm", e - t, e) for t, e in zip(times, ends, strict=True)]
        return Attribution(step(*spans, end=sum(times)), COUNTS).pieces

    pieces, alike = combined([taken(1, 5), taken(2, 90), taken(80, 7), taken(1, 2, 3)])
    assert (alike, [p.nanoseconds for p in pieces if p.nanoseconds]) == (3, [2, 7])


def test_the_flame_has_what_ran_inside_of_what_and_no_part_exceeds_it() -> None:
    nodes = flame(Attribution(whole(), COUNTS).pieces)
    inside = {(node.name, nodes[node.parent].name if node.parent >= 0 else "") for node in nodes}
    assert inside >= {
        ("aten::mm", "fc"),
        ("fc", "backward"),  # a node of autograd is its layer's
        ("MmBackward0", "fc"),
        ("aten::mm", "MmBackward0"),
        ("fewbits::quantize", "fc"),
        ("forward", ""),
    }
    for i, node in enumerate(nodes):
        assert sum(n.seconds for n in nodes if n.parent == i) <= node.seconds * (1 + 1e-12)
    assert sum(n.seconds for n in nodes if n.parent < 0) == pytest.approx(1e-7)
