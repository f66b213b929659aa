// Items for threads: in equal parts, or some at a time to whoever is free.
#pragma once

#include <algorithm>
#include <atomic>
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

// How many values a thread takes at once from what is shared: some 100 microseconds of work.
constexpr std::int64_t values_shared = 1 << 19;

// Calls work(first, last) until all items are done: a thread that other work holds up, or that wakes late, does fewer.
template <class Work>
void share(std::int64_t items, std::int64_t values, int threads, Work work) {
    const std::int64_t together = std::max<std::int64_t>(values_shared * items / std::max<std::int64_t>(values, 1), 1);
    std::atomic<std::int64_t> next{0};
    divide(items, values, threads, [&](int, std::int64_t first, std::int64_t last) {
        // One thread alone takes all at once.
        if (last - first == items) return work(first, last);
        while ((first = next.fetch_add(together)) < items) work(first, std::min(first + together, items));
    });
}

}  // namespace fewbits
