// y = x W^T for a packed matrix W and few vectors x: the entry of this folder.
#pragma once

#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/dense_lines.inc.hpp"
#include "kernels/gemv/expanded_lines.inc.hpp"
#include "kernels/gemv/groups_of_four.inc.hpp"
#include "kernels/gemv/in_registers.inc.hpp"
#include "kernels/gemv/kept_lines.inc.hpp"
#include "kernels/gemv/row_products.inc.hpp"
#include "kernels/gemv/several_rows.inc.hpp"
#include "kernels/nm/stream.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/gemv/integer_lines.inc.hpp"

namespace gemv {

using decoded_lines::lines_together;
using dense_lines::gemv_stored, dense_lines::permuted_for;
using expanded_lines::line_shape, expanded_lines::lines_from;
using groups_of_four::Groups, groups_of_four::gemv_by_groups, groups_of_four::groups_with, groups_of_four::knows;
using in_registers::few_bytes, in_registers::few_items, in_registers::pack_few, in_registers::takes_few;
using kept_lines::gemv_kept;
using stream::expand_line;
using row_products::lines_in_group;
using numbers::least;
using integer_lines::Integers, integer_lines::gemv_integers, integer_lines::integer_workspace, integer_lines::takes_integers;

namespace {  // of this file alone

// Lines of a stream that are expanded at once: as many as are multiplied together.
inline i64 lines_expanded(const Gemv& job) { return job.batch > 1 ? lines_in_group : lines_together; }

// The vector in another order, then the codes of some lines; everything begins a cache line. x takes at most four bytes for
// each value.
inline i64 workspace_of_lines(const Gemv& job) {
    const i64 codes = bytes_for(job.n, bits_of_element(job.format));
    const i64 of_floats = count_of(job.n, 16) * 64 + lines_expanded(job) * count_of(codes, 64) * 64 + 64, of_integers = integer_workspace(job);
    return of_floats > of_integers ? of_floats : of_integers;
}

}  // namespace

// And what gemv_kept notes.
i64 gemv_workspace(const Gemv& job) { return workspace_of_lines(job) + 64; }

namespace {  // of this file alone

// What lines of dense codes share: x in the order of one of the ways.
struct DenseLines {
    Groups groups;
    const float* permuted;
};

inline void gemv_dense(const Gemv& job, const DenseLines& shared, i64 first, i64 last) {
    if (!gemv_by_groups(job, shared.groups, first, last)) gemv_stored(job, shared.permuted, first, last);
}

}  // namespace

void gemv(const Gemv& job, u8* workspace, bool prepared, i64 first, i64 last) {
    // 2:4 streams of the usual formats are read where they are; all others are expanded to codes first, some lines at a
    // time, and go on as if dense.
    const Format& f = job.format;
    if (f.keep != 0 && gemv_kept(job, workspace, workspace + workspace_of_lines(job), prepared, first, last)) return;
    Gemv few = job;
    few.format.keep = 0;
    DenseLines shared{.groups = groups_with(few, workspace, prepared), .permuted = nullptr};
    if (!knows(shared.groups)) shared.permuted = permuted_for(few, prepared, reinterpret_cast<float*>(workspace));
    if (f.keep == 0) return gemv_dense(job, shared, first, last);
    const NmLines shape = line_shape(f, job.n);
    const LineBytes bytes = line_bytes(f, job.n);
    const i64 codes = bytes_for(job.n, bits_of_element(f));
    u8* const expanded = workspace + count_of(job.n, 16) * 64;
    few.codes = expanded;
    for (i64 line = first; line < last; line += lines_expanded(job)) {
        // A job of few lines, whose codes lie in the workspace and whose scales lie where they were.
        few.lines = least(lines_expanded(job), last - line);
        for (i64 l = 0; l < few.lines; ++l) expand_line(shape, job.codes + (line + l) * bytes.codes, 0, expanded + l * codes);
        const Dequantize here = lines_from(job, expanded, line);
        few.scales = here.scales;
        few.shifts = here.shifts;
        few.outer = here.outer;
        few.y = job.y + line;
        gemv_dense(few, shared, 0, few.lines);
    }
}

// Lines that a thread should take at once are a multiple of this: so many share what is read of x.
i64 lines_multiple(const Gemv& job) {
    Integers k;
    return job.batch > 1 && !takes_integers(job, k) ? lines_in_group : lines_together;
}

// Several rows of x are packed first, but for integers.
i64 panel_bytes(const Gemv& job) {
    Integers k;
    return takes_integers(job, k) ? 0 : takes_few(job) ? few_bytes(job) : several_rows::panel_bytes(job);
}

i64 panel_items(const Gemv& job) { return panel_bytes(job) == 0 ? 0 : takes_few(job) ? few_items(job) : several_rows::panel_items(job); }

void pack_panels(const Gemv& job, i64 first, i64 last) {
    if (takes_few(job)) pack_few(job, first, last);
    else several_rows::pack_panels(job, first, last);
}

// The entry: x in integers, where the weights are such too; else in float32.
void multiply(const Gemv& job, u8* workspace, bool prepared, i64 first, i64 last) {
    if (Integers k; takes_integers(job, k))
        return gemv_integers(job, k, lines_from(job, job.codes, 0), workspace, prepared, first, last);
    gemv(job, workspace, prepared, first, last);
}

}  // namespace gemv
