"""A solver's input, checked and scaled once for all right-hand sides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic

import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov import fallback
from fewbits.solvers.krylov.fallback import Attempt
from fewbits.solvers.krylov.problem import Problem
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.operators.adapters import SAME, LinearMap, any_operator, operator
from fewbits.solvers.operators.agreement import agreeing, check_columns, in_one
from fewbits.solvers.operators.matrices import Matrix
from fewbits.solvers.operators.operator import Derived, OnPairs, Operator, Shifted, random_vectors
from fewbits.solvers.operators.vectors import array, exponent_of
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution, of_family
from fewbits.typing import AnyArray, Array, Watch

FAR = 32  # A is not scaled if its magnitude is between 2^-32 and 2^32

Callback = Callable[[Array], None]


class System(Generic[Array]):
    """A x = b for one b or several.

    Attributes:
        a: the operator, scaled by 2^-exponent.
        unscaled: the operator before that.
        preconditioner: an operator, scaled, or None.
        b: (rows, k) float64 or complex128.
        x0: (n, k) of b's dtype, or None.
        shape: that of the b given.
        kind: the class of problem for each column.
        exponent: x = y 2^exponent, for the solution y of the scaled system.

    Raises:
        ArgumentError: shapes do not fit, or an argument is not a matrix or not numeric.
        DataError: NaN or infinity. With rows spread over processes, all of them raise if one does.
    """

    def __init__(
        self,
        a: LinearMap,
        b: Array,
        *,
        x0: AnyArray | None = None,
        M: LinearMap | None = None,
        pairs: bool = False,
        square: bool = True,
    ) -> None:
        self._given: Array = b
        self.a: Operator
        self.shape: torch.Size
        self.b: torch.Tensor
        self.x0: torch.Tensor | None
        self.preconditioner: Operator | None
        self.pairs: bool
        self.kind: type[Problem] = Problem
        with agreeing(a, "A x = b"):
            self._read(a, b, x0, M, pairs, square)
        self._agree()
        self._scale()

    def _agree(self) -> None:
        """Make vectors (n, k), in all processes complex, or with an x0, if they are in one.

        Raises:
            ArgumentError: processes hold different numbers of right-hand sides, or one has an M and another
                none.
        """
        self.pairs = in_one(self.a, self.pairs)
        started = in_one(self.a, self.x0 is not None)
        self.b = self._vectors(self.b)
        if started:
            k = self.b.shape[1]
            self.x0 = self.b.new_zeros(self.a.n, k) if self.x0 is None else self._vectors(self.x0)
        check_columns(self.a, self.b.shape[1], "b")
        if in_one(self.a, self.preconditioner is not None) and in_one(self.a, self.preconditioner is None):
            places = ("here", "in another process")
            given, missing = places if self.preconditioner is not None else places[::-1]
            raise ArgumentError(f"M is given {given} and not {missing}; expected one in each, or in none")

    def _read(
        self, a: LinearMap, b: Array, x0: AnyArray | None, M: LinearMap | None, pairs: bool, square: bool
    ) -> None:
        right: torch.Tensor = array(b, "b")
        if right.ndim not in (1, 2):
            raise ArgumentError(f"b has the shape {tuple(right.shape)}; expected shape (n,) or (n, k)")
        self.shape = right.shape
        rows, arrays = len(right), not isinstance(b, torch.Tensor)
        if square:
            self.a = operator(a, rows, arrays=arrays, complex_vectors=right.is_complex(), device=right.device)
        else:
            self.a = any_operator(
                a, rows, None, arrays=arrays, complex_vectors=right.is_complex(), device=right.device
            )
            if self.a.rows != rows:
                raise ArgumentError(
                    f"A has the shape ({self.a.rows}, {self.a.n}), b has {rows} values; expected"
                    f" {self.a.rows}"
                )
        start = None if x0 is None else array(x0, "x0")
        if start is not None and start.shape != (self.a.n, *right.shape[1:]):
            raise ArgumentError(
                f"x0 has the shape {tuple(start.shape)}; expected {(self.a.n, *right.shape[1:])}"
            )
        if start is not None and start.device != right.device:
            raise ArgumentError(f"x0 is on {start.device} and b on {right.device}; give x0 where b lies")
        self.preconditioner = M if M is None else self._preconditioner(M, arrays, right.is_complex())
        parts = (right, start, self.a, self.preconditioner)
        self.pairs = pairs or any(
            part.is_complex() if isinstance(part, torch.Tensor) else part is not None and part.complex
            for part in parts
        )
        self.b, self.x0 = right, start

    def _preconditioner(self, M: LinearMap, arrays: bool, complex_vectors: bool) -> Operator:
        if hasattr(M, "solve") and not callable(M) and not isinstance(M, torch.Tensor):
            raise ArgumentError(f"M is a {type(M).__name__}; give its function, M.solve")
        return operator(
            M, self.a.n, arrays=arrays, complex_vectors=complex_vectors, name="M", device=self.a.device
        )

    def _vectors(self, v: torch.Tensor) -> torch.Tensor:
        return v.to(torch.complex128 if self.pairs else torch.float64).reshape(len(v), math.prod(v.shape[1:]))

    def _scale(self) -> None:
        """Scale A and M so that their products with vectors of norm one neither overflow nor underflow."""
        if self.pairs:
            self.a = self.a if self.a.complex else OnPairs(self.a)
        self.unscaled = self.a
        self.a, self.exponent, self.zero = comfortable(self.a)
        if self.preconditioner is not None:
            preconditioner = self.preconditioner
            preconditioner = (
                OnPairs(preconditioner) if self.pairs and not preconditioner.complex else preconditioner
            )
            self.preconditioner = preconditioner.scaled(-exponent_of(_size(preconditioner, self.a, "M")))

    def problem(
        self,
        column: int,
        stopping: Stopping,
        callback: Callable[[Array], None] | None = None,
        watch: Watch | None = None,
    ) -> Problem:
        """Return the problem of one right-hand side."""
        return self.kind(
            self.a,
            self.b[:, column].contiguous(),
            x0=None if self.x0 is None else self.x0[:, column].contiguous(),
            exponent=self.exponent,
            preconditioner=self.preconditioner,
            stopping=stopping,
            callback=None if callback is None else lambda x: callback(self.as_given(x)),
            watch=watch,
        )

    def solve(
        self,
        method: str,
        precision: str | KrylovPrecision,
        attempt: Attempt,
        stopping: Stopping,
        *,
        callback: Callable[[Array], None] | None,
        watch: Watch | None,
    ) -> Solution[Array]:
        """Solve for each right-hand side, and return the solutions in the shape of b."""
        planned = fallback.precisions(precision, self.a.preferred)  # refused also where nothing is to solve
        solutions = []
        for column in range(self.b.shape[1]):
            problem = self.problem(column, stopping, callback, watch)
            if self.zero:
                problem.maxiter = 0
            solutions.append(fallback.solve(problem, method, planned, attempt))
        return self.together(solutions)

    def together(self, solutions: list[Solution[torch.Tensor]]) -> Solution[Array]:
        """Return the solutions of all columns as one, in the shape of b."""
        columns = tuple(solution.with_x(self.as_given(solution.x)) for solution in solutions)
        if len(self.shape) == 1:
            return columns[0]
        x = (
            torch.stack([solution.x for solution in solutions], 1)
            if solutions
            else self.b.new_zeros(self.a.n, 0)
        )
        return Solution(
            self.as_given(x),
            all(solution.converged for solution in solutions),
            max((solution.residual for solution in solutions), default=0.0),
            sum(solution.iterations for solution in solutions),
            tuple(stage for solution in solutions for stage in solution.stages),
            tuple(h for solution in solutions for h in solution.history),
            optimality=max((solution.optimality for solution in solutions), default=math.nan),
            claimed=max((solution.claimed for solution in solutions), default=0.0),
            reliable_updates=sum(solution.reliable_updates for solution in solutions),
            columns=columns,
        )

    def as_given(self, x: torch.Tensor) -> Array:
        """Return x as an array or a tensor, whichever b is."""
        return of_family(x, self._given)


def comfortable(a: Operator) -> tuple[Operator, int, bool]:
    """Return A 2^e, with a magnitude well inside the range of float32, e, and whether A is zero."""
    size = _size(a, a, "A")
    exponent = exponent_of(size)
    return (a.scaled(-exponent), -exponent, False) if abs(exponent) > FAR else (a, 0, size == 0)


def _size(operator: Operator, a: Operator, name: str) -> float:
    """Return the magnitude of an operator over all processes of A."""
    size = a.peak(torch.tensor(operator.magnitude(), dtype=torch.float64))
    if not math.isfinite(size):
        raise DataError(f"{name} times a vector holds NaN or infinity")
    return size


def check_symmetric(a: Operator) -> None:
    """Raise an error if u^H A v != (A u)^H v for a random u and v; it takes two products, or three.

    Raises:
        ArgumentError: A is not symmetric (Hermitian, where it is complex).
    """
    given = a
    while isinstance(a, (Shifted, OnPairs)):  # a shift may cancel most of A, and leave its rounding
        a = a.a
    if a.symmetric:
        return
    if a is not given:
        a, _, _ = comfortable(a)  # only the sum with the shift was: squares of A alone may underflow
    u, v = random_vectors(a, 2)
    of_u, of_v = a.exact(u), a.exact(v)
    rounding = 1e-8 if isinstance(a, Matrix) else SAME  # a function may compute in float32
    if not abs(a.dot(u, of_v) - a.dot(of_u, v)) <= rounding * a.norm(u) * a.norm(of_v):
        kind = "Hermitian" if a.complex else "symmetric"
        raise ArgumentError(
            f"A is not {kind}, and this solver needs that; take bicgstab, gmres or gcr, or fewbits.solve"
        )


def check_adjoint(a: Operator) -> None:
    """Raise an error if u^H A v != (A^H u)^H v for a random u and v, unless A is a matrix.

    Raises:
        ArgumentError: what is given for the adjoint of A is not that, or nothing is.
    """
    given = a
    while isinstance(given, Derived):
        given = given.a
    if isinstance(given, Matrix):
        return
    adjoint = a.adjoint()
    _, v = random_vectors(a, 2)
    u, _ = random_vectors(adjoint, 2)
    image = a.exact(v)
    one, other = a.dot(u, image), a.dot(adjoint.exact(u), v)
    if not abs(one - other) <= SAME * a.norm(u) * a.norm(image):
        raise ArgumentError(
            f"the adjoint of A is not that of A: u^H (A v) = {one:.3g}, (A^H u)^H v = {other:.3g}; expected"
            " rmatvec to multiply by the conjugate transpose, complex vectors too where matvec does"
        )
