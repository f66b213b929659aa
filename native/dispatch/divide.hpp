// Items in equal parts for threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dispatch/exact.hpp"
#include "dispatch/pool.hpp"

namespace fewbits {

// Below this many values for each thread (128 KiB read), waking it costs more than it gives.
constexpr std::int64_t values_per_thread = 1 << 15;

// Calls work(thread, first, last) with all items in equal parts.
template <class Work>
void divide(std::int64_t items, std::int64_t values, int threads, Work work) {
    const auto useful = static_cast<int>(std::min<std::int64_t>({threads, items, values / values_per_thread}));
    const auto part = [&](int me, int all) {
        [[maybe_unused]] const ExactArithmetic exact;
        work(me, items * me / all, items * (me + 1) / all);
    };
    if (useful <= 1) return part(0, 1);
    run_parallel(useful, [](void* work_of_part, int me, int all) { (*static_cast<decltype(part)*>(work_of_part))(me, all); },
                 const_cast<void*>(static_cast<const void*>(&part)));
}

}  // namespace fewbits
