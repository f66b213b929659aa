"""Machines by name: peak rates of their makers' data sheets. Real rates are lower, for all widths alike."""

from __future__ import annotations

from fewbits.errors import ArgumentError
from fewbits.records import Machine, MachineLink

_GB, _TERA = 10**9, 1e12
_WIDTHS = ("fp32", "tf32", "bf16", "fp8", "fp6", "fp4")  # from wide to narrow


def _machine(
    name: str, rates: dict[str, float], gigabits: tuple[float, float], memory: float, bandwidth: float
) -> Machine:
    """Return a machine of nodes of eight, whose vectors move some four bytes for each FLOP."""
    links = (MachineLink(gigabits[0], 3.0), MachineLink(gigabits[1], 10.0))
    flops = {width: rate * _TERA for width, rate in rates.items()}
    return Machine(name, flops, links, memory * _GB, 8, bandwidth * _TERA / 4)


# Rates in TFLOP/s, dense; links of a device in Gbit/s each way; memory in GB, its bandwidth in TB/s.
MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        _machine("v100", {"fp32": 15.7, "bf16": 15.7}, (1200, 12.5), 32, 0.9),
        _machine("a100", {"fp32": 19.5, "tf32": 156, "bf16": 312}, (2400, 200), 80, 2.0),
        _machine("h100", {"fp32": 67, "tf32": 494, "bf16": 989, "fp8": 1979}, (3600, 400), 80, 3.35),
        _machine("h200", {"fp32": 67, "tf32": 494, "bf16": 989, "fp8": 1979}, (3600, 400), 141, 4.8),
        _machine(
            "b200",
            {"fp32": 80, "tf32": 1125, "bf16": 2250, "fp8": 4500, "fp6": 4500, "fp4": 9000},
            (7200, 400), 180, 8.0,
        ),
        Machine("ethernet-cpus", {"fp32": 1e12, "bf16": 2e12}, (MachineLink(10.0, 50.0),), 64 * _GB, 1, 2e10),
    )
}  # fmt: skip


def machine(named: str | Machine) -> Machine:
    """Return a machine by its name, or the machine itself.

    Raises:
        ArgumentError: no such name.
    """
    if isinstance(named, Machine):
        return named
    if named not in MACHINES:
        raise ArgumentError(
            f"there is no machine {named!r}; expected one of {', '.join(MACHINES)}, a Machine, or a file that"
            " `fewbits plan --measure` wrote"
        )
    return MACHINES[named]


def product_rate(of: Machine, bits: float) -> float:
    """Return the FLOP per second of products whose widest operand has elements of so many bits.

    Raises:
        ArgumentError: all rates of the machine are of narrower operands, which these do not fit.
    """
    limits = {"fp32": 32, "tf32": 19, "bf16": 16, "fp8": 8, "fp6": 6, "fp4": 4}
    fitting = [width for width in _WIDTHS if limits[width] >= bits and width in of.flops]
    if not fitting:
        raise ArgumentError(
            f"the machine {of.name!r} has rates of products in {', '.join(of.flops)} alone, and the recipe"
            f" has products of {bits:g} bits; give its `flops` a rate for them, or take a narrower recipe"
        )
    return of.flops[fitting[-1]]
