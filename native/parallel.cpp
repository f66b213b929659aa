#include "parallel.hpp"

#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef FEWBITS_X86
#include <xmmintrin.h>
#endif

namespace fewbits {
namespace {

// Below this many values for each thread (128 KiB read), waking it costs more than it gives.
constexpr std::int64_t values_per_thread = 1 << 15;

// Another library may have told this thread to flush subnormals or to round otherwise; a kernel's results
// must not depend on that. The old state comes back at the end.
class ExactArithmetic {
  public:
#ifdef FEWBITS_X86
    ExactArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~(flush_to_zero | subnormals_are_zero | rounding)); }
    ~ExactArithmetic() { _mm_setcsr(saved_); }
    ExactArithmetic(const ExactArithmetic&) = delete;
    ExactArithmetic& operator=(const ExactArithmetic&) = delete;

  private:
    static constexpr unsigned flush_to_zero = 0x8000, subnormals_are_zero = 0x0040, rounding = 0x6000;
    unsigned saved_;
#endif
};

Outcome run_range(FakeQuantizeKernel kernel, const FakeQuantize& p, const float* in, float* out, std::int64_t first,
                  std::int64_t last) {
    [[maybe_unused]] const ExactArithmetic exact;
    return kernel(p, in, out, first, last);
}

}  // namespace

bool has_threads() {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
}

Outcome run(FakeQuantizeKernel kernel, const FakeQuantize& p, const float* in, float* out, int threads) {
    const std::int64_t blocks = p.rows * blocks_per_row(p);
    const std::int64_t useful = std::min<std::int64_t>({threads, blocks, p.rows * p.cols / values_per_thread});
    // One thread never enters OpenMP: its runtime does not survive a fork, and workers of a data loader are forked.
    if (useful <= 1 || !has_threads()) return run_range(kernel, p, in, out, 0, blocks);

    Outcome outcome{nullptr, false};
#ifdef _OPENMP
    bool nonfinite = false;
    const int count = static_cast<int>(useful);
#pragma omp parallel num_threads(count) reduction(|| : nonfinite)
    {
        const std::int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        const Outcome mine = run_range(kernel, p, in, out, blocks * me / all, blocks * (me + 1) / all);
        nonfinite = mine.nonfinite;
        if (me == 0) outcome.isa = mine.isa;
    }
    outcome.nonfinite = nonfinite;
#endif
    return outcome;
}

}  // namespace fewbits
