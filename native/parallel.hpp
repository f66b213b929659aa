// Divides the blocks of an array among threads.
#pragma once

#include "fake_quantize.hpp"

namespace fewbits {

// Whether this build has threads at all.
bool has_threads();

// Runs the kernel over every block with at most `threads` threads. Results do not depend on their number.
Outcome run(FakeQuantizeKernel kernel, const FakeQuantize& p, const float* in, float* out, int threads);

}  // namespace fewbits
