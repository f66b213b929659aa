// y = x W^T for a packed matrix W and few vectors x: the entry of this folder.
#pragma once

#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/dense_lines.inc.hpp"
#include "kernels/gemv/groups_of_four.inc.hpp"
#include "kernels/nm/stream.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace gemv {

using decoded_lines::lines_together;
using dense_lines::gemv_stored, dense_lines::permuted_for;
using groups_of_four::gemv_by_groups, groups_of_four::line_shape, groups_of_four::lines_from;
using stream::expand_line;
using numbers::least;

// The permuted vector, and the codes of four lines.
i64 gemv_workspace(const Gemv& job) {
    // Everything begins a cache line. x takes at most four bytes for each value in either order.
    const i64 codes = bytes_for(job.n, bits_of_element(job.format));
    return count_of(job.n, 16) * 64 + lines_together * count_of(codes, 64) * 64 + 64;
}

void gemv(const Gemv& job, u8* workspace, bool prepared, i64 first, i64 last) {
    // Groups of four take dense codes and 2:4 streams of the usual formats; all other streams are expanded to codes
    // first, four lines at a time, and go on as if dense.
    if (gemv_by_groups(job, workspace, prepared, first, last)) return;
    const Format& f = job.format;
    const float* const permuted = permuted_for(job, prepared, reinterpret_cast<float*>(workspace));
    if (f.keep == 0) return gemv_stored(job, permuted, first, last);
    const NmLines shape = line_shape(f, job.n);
    const LineBytes bytes = line_bytes(f, job.n);
    Gemv few = job;
    few.format.keep = 0;
    const i64 codes = bytes_for(job.n, bits_of_element(f));
    u8* const expanded = workspace + count_of(job.n, 16) * 64;
    few.codes = expanded;
    for (i64 line = first; line < last; line += lines_together) {
        // A job of at most four lines, whose codes lie in the workspace and whose scales lie where they were.
        few.lines = least(lines_together, last - line);
        for (i64 l = 0; l < few.lines; ++l) expand_line(shape, job.codes + (line + l) * bytes.codes, 0, expanded + l * codes);
        const Dequantize here = lines_from(job, expanded, line);
        few.scales = here.scales;
        few.shifts = here.shifts;
        few.outer = here.outer;
        few.y = job.y + line;
        gemv_stored(few, permuted, 0, few.lines);
    }
}

}  // namespace gemv
