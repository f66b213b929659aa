// Recursive on the columns (Toledo, Locality of Reference in LU Decomposition with Partial Pivoting, 1997): the left half
// is factorized, the right half updated and factorized in turn, so that products are as large as they can be.
#include "dispatch/lu.hpp"

#include "dispatch/divide.hpp"
#include "dispatch/scratch.hpp"
#include "jobs/layout.hpp"

#include <algorithm>

namespace fewbits {
namespace {

constexpr std::int64_t block = 128;  // columns that are copied together: their rows lie close to each other
constexpr std::int64_t block_row = block + 16;  // not a power of two, whose multiples share a few sets of a cache
constexpr std::int64_t chunk = 1024;  // columns updated at once, which bounds what is packed of them
constexpr std::int64_t solved_together = 512;  // columns, at most
constexpr std::int64_t exchanges_ahead = 4, asked_for = 512;  // numbers at the beginning of a row: hardware follows
constexpr std::int64_t products_per_value = 32;  // multiply-adds that take about as long as reading a value

std::int64_t packed_numbers(std::int64_t n) { return (n / 2 + block) * (std::min(n, chunk) + lu_widest_panel); }

template <class T>
struct Run {
    const LuKernels<T>& kernels;
    T *packed, *copy, *columns, *rooms;  // `rooms`: one of lu_room numbers for each thread
    int threads;
};

// Rows of (m, n) change places, in the order of the exchanges. What follows is asked for: the rows lie anywhere in memory.
template <class T>
void exchange_rows_in(T* a, std::int64_t row, std::int64_t n, const std::int64_t* exchanges, std::int64_t count, int threads) {
    divide(n, n * count, threads, [&](int, std::int64_t first, std::int64_t last) {
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t later = i + exchanges_ahead;
            if (later < count && exchanges[later] != later)
                for (std::int64_t j = first; j < std::min(last, first + asked_for); j += 64 / sizeof(T))
                    for (const std::int64_t other : {later, exchanges[later]}) __builtin_prefetch(a + other * row + j, 1);
            if (exchanges[i] != i) std::swap_ranges(a + i * row + first, a + i * row + last, a + exchanges[i] * row + first);
        }
    });
}

template <class T>
void update(const Run<T>& run, const T* left, T* right, std::int64_t row, std::int64_t m, std::int64_t k, std::int64_t n, const std::int64_t* exchanges) {
    const std::int64_t panel = run.kernels.panel(), below = m - k;
    for (std::int64_t start = 0; start < n; start += chunk) {
        LuUpdate<T> job{
            .m = m,
            .k = k,
            .n = std::min(chunk, n - start),
            .row = row,
            .left = left,
            .right = right + start,
            .exchanges = exchanges,
            .packed = run.packed,
            .panels_in_item = 0,
            .rows_in_item = 0,
        };
        // Panels side by side share what is packed of the triangle, if every thread has some.
        const std::int64_t panels = count_of(job.n, panel);
        job.panels_in_item = std::clamp<std::int64_t>(count_of(panels, run.threads), 1, solved_together / panel);
        // Items of equal size, as many for each thread, in whole tiles of every instruction set.
        const std::int64_t turns = count_of(below, run.threads * lu_most_rows<T>);
        job.rows_in_item = std::max<std::int64_t>(1, count_of(count_of(below, run.threads * std::max<std::int64_t>(1, turns)), 12)) * 12;
        divide(count_of(panels, job.panels_in_item), k * k * job.n / 2 / products_per_value, run.threads,
               [&](int thread, std::int64_t first, std::int64_t last) { run.kernels.solve_upper_rows(job, run.rooms + thread * lu_room<T>, first, last); });
        divide(count_of(below, job.rows_in_item), below * k * job.n / products_per_value, run.threads,
               [&](int thread, std::int64_t first, std::int64_t last) { run.kernels.subtract_lower_rows(job, run.rooms + thread * lu_room<T>, first, last); });
    }
}

template <class T>
void copy_rows(const Run<T>& run, const T* from, std::int64_t from_row, T* to, std::int64_t to_row, std::int64_t m, std::int64_t n) {
    divide(m, m * n, run.threads, [&](int, std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) std::copy_n(from + i * from_row, n, to + i * to_row);
    });
}

template <class T>
void factorize(const Run<T>& run, T* a, std::int64_t row, std::int64_t m, std::int64_t n, std::int64_t* exchanges) {
    if (n <= lu_columns) {
        [[maybe_unused]] const ExactArithmetic exact;
        return run.kernels.factorize_columns({.a = a, .m = m, .n = n, .row = row, .exchanges = exchanges, .room = run.columns});
    }
    if (n <= block && row != block_row) {
        copy_rows(run, a, row, run.copy, block_row, m, n);
        factorize(run, run.copy, block_row, m, n, exchanges);
        return copy_rows(run, run.copy, block_row, a, row, m, n);
    }
    const std::int64_t unit = n > block ? block : lu_columns, half = count_of(n / 2, unit) * unit;
    T* right = a + half;
    factorize(run, a, row, m, half, exchanges);
    update(run, a, right, row, m, half, n - half, exchanges);
    factorize(run, right + half * row, row, m - half, n - half, exchanges + half);
    exchange_rows_in(a + half * row, row, half, exchanges + half, n - half, run.threads);
    for (std::int64_t i = half; i < n; ++i) exchanges[i] += half;
}

template <class T>
void factorize_in(const LuKernels<T>& kernels, const Lu<T>& lu, int threads) {
    // Each part begins at a multiple of 64 bytes.
    const auto aligned = [](std::int64_t numbers) { return count_of(numbers, 16) * 16; };
    const std::int64_t packed = aligned(packed_numbers(lu.n)), copy = aligned(lu.m * block_row), columns = aligned(lu_columns * lu_stride(lu.m));
    const Scratch scratch(static_cast<std::size_t>(packed + copy + columns + threads * lu_room<T>) * sizeof(T));
    T* numbers = reinterpret_cast<T*>(scratch.data());
    const Run<T> run{
        .kernels = kernels,
        .packed = numbers,
        .copy = numbers + packed,
        .columns = numbers + packed + copy,
        .rooms = numbers + packed + copy + columns,
        .threads = threads,
    };
    factorize(run, lu.a, lu.row, lu.m, lu.n, lu.exchanges);
}

}  // namespace

void exchange_rows(float* a, std::int64_t row, std::int64_t n, const std::int64_t* exchanges, std::int64_t count, int threads) {
    exchange_rows_in(a, row, n, exchanges, count, threads);
}
void factorize_lu(const Systems& systems, const Lu<float>& lu, int threads) { factorize_in(systems.lu, lu, threads); }
void factorize_lu(const Systems& systems, const Lu<double>& lu, int threads) { factorize_in(systems.lu_double, lu, threads); }

}  // namespace fewbits
