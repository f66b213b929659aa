// The table of kernels of one instruction set; the only name that leaves its namespace.
#pragma once

#include "kernels/dense/residuals.inc.hpp"
#include "kernels/dense/triangles.inc.hpp"
#include "kernels/dequantize/dequantize.inc.hpp"
#include "kernels/gemm/additions.inc.hpp"
#include "kernels/gemv/groups_of_four.inc.hpp"
#include "kernels/lattice/wilson.inc.hpp"
#include "kernels/nm/permutation.inc.hpp"
#include "kernels/nm/stream.inc.hpp"
#include "kernels/quantize/contiguous_lines.inc.hpp"
#include "kernels/quantize/strided_lines.inc.hpp"
#include "kernels/quantize/tiles.inc.hpp"
#include "kernels/sparse/rows.inc.hpp"
#include "kernels/stencil/passes.inc.hpp"
#include "kernels/values/counter_uniform.inc.hpp"
#include "kernels/values/lines.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace {

i64 items(const Job& job) {
    const Plan p = plan_of(job);
    return side_by_side(p.g) ? items_in_columns(p) : items_in_rows(p);
}

// What the compiler really had, not what the build meant to give it.
constexpr const char* compiled_for =
#if defined(__AVX512BF16__)
    "avx512_bf16";
#elif defined(__AVX512F__)
    "avx512";
#elif defined(__AVX2__)
    "avx2";
#else
    "baseline";
#endif

Outcome convert(const Job& job, i64 first, i64 last) {
    const Plan p = plan_of(job);
    Buffers t;
    fill(t.one, 1.0f, tile);
    if (first == 0) write_shared(p, t);
    bool finite = true;
    if (first < last)
        finite = side_by_side(p.g) ? convert_columns(p, t, first, last) : convert_rows(p, t, first, last);
    if (job.nontemporal) finish_nontemporal_stores();
    return {compiled_for, !finite};
}

constexpr i64 measured_together = 8 * tile;

i64 measure_items(const Geometry& g) { return lines_in(g) * count_of(g.n, measured_together); }

Magnitudes measure_all(const void* in, Real type, const Geometry& g, i64 first, i64 last) {
    alignas(64) float buffer[tile];
    const i64 in_line = count_of(g.n, measured_together);
    Measured m{0, false};
    u32 least_bits = ~u32{0};  // of magnitudes, less one: zero comes last
    for (i64 item = first; item < last; ++item) {
        const i64 line = line_of(g, item / in_line).in, end = least(g.n, (item % in_line + 1) * measured_together);
        for (i64 start = item % in_line * measured_together; start < end; start += tile) {
            const i64 n = least(tile, end - start);
            const void* from = at(in, type, line + start * g.step);
            const float* x = static_cast<const float*>(from);
            if (type != Real::f32 || g.step != 1) {
                load(from, type, g.step, n, buffer);
                x = buffer;
            }
            see(m, x, n);
            least_bits = smallest_of(x, n, least_bits);
        }
    }
    const double infinity = __builtin_inf(), smallest = static_cast<double>(float_of(static_cast<i32>(least_bits + 1)));
    return {static_cast<double>(float_of(m.largest)), least_bits < static_cast<u32>(infinity_bits) ? smallest : infinity, m.bad};
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {items, convert, restore_items, restore, gemv_workspace, gemv, compress, expand, measure_items, measure_all, additions, lattice,
                         direction_workspace, direction_all, residual_all, pack_all, multiply_rows, residuals, extents, substitute, settle, anneal, counter_uniform};
