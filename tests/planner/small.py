"""Networks small enough to try every plan."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from fewbits.planner import Graph, Machine, MachineLink
from fewbits.planner.networks.builder import Builder, Tensor
from fewbits.planner.options import Sharded, layer_options
from fewbits.planner.role_bits import role_bits
from fewbits.planner.tables import Tables, tables

GB = 10**9
TWO_LEVELS = Machine(
    "two levels",
    {"fp32": 1e13, "bf16": 4e13, "fp8": 8e13},
    (MachineLink(800, 1), MachineLink(50, 5)),
    16 * GB,
    4,
    1e12,
)
SLOW = Machine("slow", {"fp32": 1e13}, (MachineLink(1.0),), 16 * GB, 1, 1e12)
FAST = Machine("fast", {"fp32": 1e12}, (MachineLink(float("inf")),), 16 * GB, 1, 1e11)
DEAD = Machine("dead", {"fp32": 1e12}, (MachineLink(0.0),), 16 * GB, 1, 1e11)
MACHINES = (TWO_LEVELS, SLOW, FAST)


def perceptron(batch: int = 16) -> Graph:
    """Two products with a residual sum, and a loss."""
    build = Builder()
    x = build.product("up", Tensor((batch, 64)), 256)
    x = build.product("down", x, 32)
    build.loss("loss", x)
    return build.graph()


def branches() -> Graph:
    """A convolution read by two branches that are put side by side."""
    build = Builder()
    x = build.convolution("stem", Tensor((8, 4, 8, 8)), 8, (3, 3), padding=(1, 1))
    a = build.convolution("a", x, 8, (1, 1))
    b = build.batch_norm("b", x)
    x = build.concatenate("both", [a, b])
    build.product("fc", build.flatten(x), 16)
    return build.graph()


def attention() -> Graph:
    """Self-attention with a residual sum."""
    build = Builder()
    x = build.embedding("embedding", (4, 8), 64, 16)
    query = build.product("query", x, 16)
    y = build.attention("scores", query, query, query, 4)
    build.add("add", x, build.product("out", y, 16))
    return build.graph()


GRAPHS = {"perceptron": perceptron, "branches": branches, "attention": attention}


def small_tables(
    graph: Graph,
    devices: int,
    machine: Machine,
    recipes: Sequence[str] = ("fp32",),
    sensitivity: Mapping[str, Sequence[float]] | None = None,
    sharded: Sharded = "never",
) -> Tables:
    """Costs of all options of a network."""
    options = layer_options(graph, devices, len(recipes), {}, {}, sharded)
    roles = [role_bits(r) for r in (*recipes, "fp32")]
    return tables(graph, options, devices, machine, roles, sensitivity or {})


def all_choices(found: Tables) -> Iterator[tuple[int, ...]]:
    """Every choice of one option for each layer."""
    return itertools.product(*(range(len(o.formats)) for o in found.options))
