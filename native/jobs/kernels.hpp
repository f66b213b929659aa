// The functions of one instruction set that convert and multiply.
#pragma once

#include <cstdint>

#include "jobs/additions.hpp"
#include "jobs/conversion.hpp"
#include "jobs/counter_uniform.hpp"
#include "jobs/feedback.hpp"
#include "jobs/gemv.hpp"
#include "jobs/geometry.hpp"
#include "jobs/nm_lines.hpp"
#include "jobs/nm_permutation.hpp"
#include "jobs/planes.hpp"
#include "jobs/tally.hpp"
#include "jobs/top_k.hpp"

namespace fewbits {

// Each does the items first to last - 1 of a job, of `items` in all; any division of the items gives the same result.
struct Kernels {
    std::int64_t (*quantize_items)(const Quantize&);
    Outcome (*quantize)(const Quantize&, std::int64_t first, std::int64_t last);
    std::int64_t (*dequantize_items)(const Dequantize&);
    void (*dequantize)(const Dequantize&, std::int64_t first, std::int64_t last);
    // n values, `step` apart, as float32, and the way back, to nearest even.
    void (*load)(const void* in, Real type, std::int64_t step, std::int64_t n, float* out);
    void (*store)(void* out, Real type, std::int64_t step, std::int64_t n, const float* in);
    std::int64_t (*gemv_workspace)(const Gemv&);  // bytes that each thread needs
    // Items are lines. `prepared` says that the workspace has served this job before: what all lines share is in it.
    void (*gemv)(const Gemv&, std::uint8_t* workspace, bool prepared, std::int64_t first, std::int64_t last);
    std::int64_t (*gemv_lines)(const Gemv&);  // a thread should take a multiple of so many at once
    // Several rows of x are packed before, into panels that all threads read: their bytes, and the items of packing them.
    std::int64_t (*gemv_panel_bytes)(const Gemv&);
    std::int64_t (*gemv_panel_items)(const Gemv&);
    void (*gemv_pack)(const Gemv&, std::int64_t first, std::int64_t last);
    std::int64_t (*planes_panel_bytes)(const Planes&);
    void (*planes_pack)(const Planes&, std::int64_t first, std::int64_t last);  // items are rows of x
    void (*planes)(const Planes&, std::int64_t first, std::int64_t last);       // items are lines
    // Each returns the first line that is not of the pattern, or -1.
    std::int64_t (*compress)(const NmLines&, std::int64_t first, std::int64_t last);
    std::int64_t (*expand)(const NmLines&, std::int64_t first, std::int64_t last);
    std::int64_t (*measure_items)(const Geometry&);
    Magnitudes (*measure)(const void* in, Real type, const Geometry&, std::int64_t first, std::int64_t last);
    void (*largest_of_lines)(const Tally&, std::int64_t first, std::int64_t last);
    void (*tally)(const Tally&, std::int64_t first, std::int64_t last);  // items: items_of
    void (*tally_pairs)(const PairTally&, std::int64_t first, std::int64_t last);
    void (*additions)(const Additions&, std::int64_t first, std::int64_t last);  // items are rows
    void (*evaluate_groups)(const NmPermutation&, std::int64_t first, std::int64_t last);  // items are groups
    // One after the other: each swap that is made changes what the next ones gain.
    std::int64_t (*anneal)(const NmPermutation&, const std::int32_t* pairs, const std::int64_t* allowances, std::int64_t* gains, std::int64_t n);
    std::int64_t (*feedback_items)(const Feedback&);
    Outcome (*feedback)(const Feedback&, std::int64_t first, std::int64_t last);  // the first item before all others
    // Both return how many candidates there are then, k or all where there are less; top_k needs room_of its values.
    std::int64_t (*top_k)(const TopK&, const Candidates&, std::int64_t first, std::int64_t last);
    std::int64_t (*keep_largest)(const Candidates&, std::int64_t n, std::int64_t k);
    void (*counter_uniform)(const CounterUniform&, std::int64_t first, std::int64_t last);
};

}  // namespace fewbits
