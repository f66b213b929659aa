"""Triton kernels for GPUs, equal to :mod:`fewbits.kernels.reference` bit for bit; the extra ``fewbits[gpu]``.

The folders are those of the definition. Importing a module imports Triton, which reads ``TRITON_INTERPRET``
then: with it the kernels run on the CPU, slowly, for tests.

Bits are kept by three rules. Powers of two are integer arithmetic on the bits of float32, so that no flag of
a compiler or chip decides about subnormals. Real scales are products and quotients of float32, each rounded
once: ``enable_fp_fusion=False`` keeps the compiler from contracting two of them, and ``tl.div_rn`` is the
division that rounds. Draws of stochastic rounding are counters of Threefry, by place.

A part of a specification that is more than a number gets a name of its own before it is handed on, as in
``grid: tl.constexpr = f.grid``: Triton before 3.9 takes it for a value otherwise. Its minus was 0 - x, which
has no minus zero, so signs are bits.

No kernel branches on values, reads what another program of the same launch wrote, or waits for the host.
"""
