#include "dispatch/parallel.hpp"

#include "dispatch/divide.hpp"
#include "dispatch/scratch.hpp"
#include "jobs/layout.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

namespace fewbits {
namespace {

constexpr std::int64_t cache_line = 64;  // bytes
// Of products with few vectors: how many values a thread takes at once, 5 to 20 microseconds, and of large matrices in how many
// turns: what a turn begins with, prefetching above all, is then nothing beside its work.
constexpr std::int64_t values_taken = 1 << 18, turns_of_thread = 64;

}  // namespace

Outcome quantize(const Kernels& kernels, const Quantize& job, int threads) {
    std::atomic<const char*> isa{nullptr};
    std::atomic<bool> nonfinite{false};
    share(kernels.quantize_items(job), lines_in(job.geometry) * job.geometry.n, threads, [&](std::int64_t first, std::int64_t last) {
        const Outcome mine = kernels.quantize(job, first, last);
        isa = mine.isa;
        if (mine.nonfinite) nonfinite = true;
    });
    return {isa, nonfinite};
}

void dequantize(const Kernels& kernels, const Dequantize& job, int threads) {
    share(kernels.dequantize_items(job), lines_in(job.geometry) * job.geometry.n, threads,
          [&](std::int64_t first, std::int64_t last) { kernels.dequantize(job, first, last); });
}

namespace {

std::int64_t whole(std::int64_t bytes) { return count_of(bytes, cache_line) * cache_line; }
std::int64_t whole_floats(std::int64_t n) { return whole(n * static_cast<std::int64_t>(sizeof(float))); }

// Rows one behind the other.
Geometry rows_of(std::int64_t batch, std::int64_t n) {
    Geometry g{};
    g.n = n;
    g.step = g.place_step = 1;
    g.axes = 1;
    g.extent[0] = batch;
    g.stride[0] = g.place_stride[0] = n;
    return g;
}

// Whether no value of x is subnormal, nor any sum of some of them, which units for bfloat16 take for zero: with eight bits a value
// they are multiples of 2^-7 of the least one.
bool is_normal(const Kernels& kernels, const float* x, const Geometry& g) {
    return kernels.measure(x, Real::f32, g, 0, kernels.measure_items(g)).smallest >= std::numeric_limits<float>::min() * 128.0f;
}

// Bytes of what the vectors of a product become before: float32, and integers with their scales.
struct RowBytes {
    std::int64_t x, y, codes, scales;
    std::int64_t all() const { return x + y + codes + scales; }
};

RowBytes row_bytes(const Gemv& job, Real type, const Format* activation) {
    const bool wide = type == Real::f32;
    const LineBytes rounded = activation ? line_bytes(*activation, job.n) : LineBytes{};
    return {
        .x = wide && !activation ? 0 : whole_floats(job.batch * job.n),
        .y = wide ? 0 : whole_floats(job.batch * job.lines),
        .codes = whole(job.batch * rounded.codes),
        .scales = whole(job.batch * rounded.scales),
    };
}

// Sets what the kernels read of x and write of y.
void prepare_rows(const Kernels& kernels, Gemv& job, const void* x, void* y, Real type, const Format* activation, std::uint8_t* room) {
    const RowBytes bytes = row_bytes(job, type, activation);
    const Geometry g = rows_of(job.batch, job.n);
    auto* const rows = reinterpret_cast<float*>(room);
    job.x = bytes.x ? rows : static_cast<const float*>(x);
    job.y = bytes.y ? reinterpret_cast<float*>(room + bytes.x) : static_cast<float*>(y);
    if (activation) {
        std::uint8_t *const codes = room + bytes.x + bytes.y, *const scales = codes + bytes.codes;
        const Quantize to{.format = *activation, .geometry = g, .in = x, .in_type = type, .values = nullptr, .values_type = Real::f32,
                          .codes = codes, .scales = scales, .shifts = nullptr, .outer = nullptr, .nontemporal = false};
        kernels.quantize(to, 0, kernels.quantize_items(to));
        const Dequantize back{.format = *activation, .geometry = g, .codes = codes, .scales = scales, .shifts = nullptr, .outer = nullptr,
                              .values = rows, .values_type = Real::f32, .combine = Combine::replace, .nontemporal = false};
        kernels.dequantize(back, 0, kernels.dequantize_items(back));
        job.x_codes = reinterpret_cast<const std::int8_t*>(codes);
        job.x_scales = reinterpret_cast<const float*>(scales);
    } else if (bytes.x) {
        kernels.load(x, type, 1, job.batch * job.n, rows);
        job.narrow = type == Real::bf16 && is_normal(kernels, rows, g);
    }
}

}  // namespace

void gemv(const Kernels& kernels, Gemv job, const void* x, void* y, Real type, const Format* activation, int threads) {
    const Scratch wide(static_cast<std::size_t>(row_bytes(job, type, activation).all()));
    divide(1, job.batch * job.n, 1, [&](int, std::int64_t, std::int64_t) { prepare_rows(kernels, job, x, y, type, activation, wide.data()); });
    const std::int64_t each = whole(kernels.gemv_workspace(job)), panels = whole(kernels.gemv_panel_bytes(job));
    const Scratch scratch(static_cast<std::size_t>(panels + threads * each));
    std::uint8_t* workspace = scratch.data() + panels;
    job.panels = scratch.data();
    divide(kernels.gemv_panel_items(job), job.batch * job.n, threads,
           [&](int, std::int64_t first, std::int64_t last) { kernels.gemv_pack(job, first, last); });
    // Some lines at a time to whoever is free: a thread that other work holds up, or that wakes late, does fewer.
    const std::int64_t multiple = kernels.gemv_lines(job);
    const std::int64_t by_values = values_taken / std::max<std::int64_t>(job.n * job.batch, 1) + 1;
    const std::int64_t by_turns = job.lines / (turns_of_thread * threads);
    const std::int64_t together = count_of(std::max(by_values, by_turns), multiple) * multiple;
    std::atomic<std::int64_t> next{0};
    divide(job.lines, job.lines * job.n, threads, [&](int thread, std::int64_t, std::int64_t) {
        bool prepared = false;
        for (std::int64_t first = next.fetch_add(together); first < job.lines; first = next.fetch_add(together), prepared = true)
            kernels.gemv(job, workspace + thread * each, prepared, first, std::min(first + together, job.lines));
    });
    if (type == Real::f32) return;
    divide(1, job.batch * job.lines, 1, [&](int, std::int64_t, std::int64_t) { kernels.store(y, type, 1, job.batch * job.lines, job.y); });
}

void multiply(const Kernels& kernels, Planes job, int threads) {
    const Scratch scratch(static_cast<std::size_t>(kernels.planes_panel_bytes(job)));
    job.panels = scratch.data();
    divide(job.batch, job.batch * job.n, threads, [&](int, std::int64_t first, std::int64_t last) { kernels.planes_pack(job, first, last); });
    // Some pairs of lines at a time to whoever is free.
    const std::int64_t together = 2 * (values_taken / (2 * std::max<std::int64_t>(job.n * job.batch, 1)) + 1);
    std::atomic<std::int64_t> next{0};
    divide(job.lines, job.lines * job.n, threads, [&](int, std::int64_t, std::int64_t) {
        for (std::int64_t first = next.fetch_add(together); first < job.lines; first = next.fetch_add(together))
            kernels.planes(job, first, std::min(first + together, job.lines));
    });
}

std::int64_t transcode(std::int64_t (*run)(const NmLines&, std::int64_t, std::int64_t), const NmLines& job, int threads) {
    std::mutex lock;
    std::int64_t wrong = -1;
    divide(job.lines, job.lines * job.n, threads, [&](int, std::int64_t first, std::int64_t last) {
        const std::int64_t mine = run(job, first, last);
        const std::lock_guard<std::mutex> guard(lock);
        if (mine >= 0 && (wrong < 0 || mine < wrong)) wrong = mine;
    });
    return wrong;
}

namespace {

// Each scale is the binade of its block's largest magnitude over two to the top exponent: with these exponents neither scales
// nor scaled sums leave the normal numbers of float32.
bool can_scale(Unit unit, const BlockRange& a, const BlockRange& b) {
    const int top = top_exponent(unit);
    const auto exponent = [](std::int32_t bits) { return (bits >> 23) - 127; };
    // An infinity is no integer, and times zeros NaN.
    if (!a.whole || !b.whole || std::max(exponent(a.largest), exponent(b.largest)) > 127) return false;
    if (a.largest == 0 || b.largest == 0) return true;  // zeros
    return std::min(exponent(a.least), exponent(b.least)) >= -126 + top && exponent(a.least) + exponent(b.least) - 2 * top >= -126 &&
           exponent(a.largest) + exponent(b.largest) - 2 * top + exponent_of_sum(unit) <= 127;
}

// The instructions for bfloat16 take subnormals for zero. With eight bits each, every product and sum is a multiple of 2^-14
// times the least product, which has to be a normal number.
bool stays_normal(const BlockRange& a, const BlockRange& b) {
    const int least_of_a = (a.least >> 23) - 127, least_of_b = (b.least >> 23) - 127;
    return a.whole && b.whole && std::min(least_of_a, least_of_b) >= -126 && least_of_a + least_of_b - 14 >= -126;
}

// What two parts of a factor have met.
BlockRange both(const BlockRange& a, const BlockRange& b) {
    return {std::min(a.least, b.least), std::max(a.largest, b.largest), a.whole && b.whole, a.finite && b.finite};
}

constexpr BlockRange nothing{std::numeric_limits<std::int32_t>::max(), 0, true, true};

// What both factors of a product have met.
struct Met {
    BlockRange a = nothing, b = nothing;
};

bool fits(Unit unit, const Met& met) {
    return unit == Unit::float32 || (is_integers(unit) ? can_scale(unit, met.a, met.b) : stays_normal(met.a, met.b));
}

// The bytes that a product takes: panels of both factors, then what each thread works in.
struct Room {
    std::int64_t of_b, of_both, each;
};

Room room_of(const Products& products, const Product& p) {
    const std::int64_t of_b = whole(products.panel_bytes(p, true));
    return {of_b, of_b + whole(products.panel_bytes(p, false)),
            whole(std::max(products.pack_workspace(p), products.workspace(p)))};
}

// One product in the room that it takes. With b or a that the unit cannot multiply it ends before the product.
Met multiply_in(std::uint8_t* memory, const Room& room, const Products& products, Product p) {
    p.panels = memory;
    p.left_panels = memory + room.of_b;
    // What all threads together met.
    const auto meet = [&](std::int64_t items, std::int64_t work, const auto& run) {
        std::mutex lock;
        BlockRange all = nothing;
        divide(items, work, static_cast<int>(p.threads), [&](int thread, std::int64_t first, std::int64_t last) {
            const BlockRange mine = run(memory + room.of_both + thread * room.each, first, last);
            const std::lock_guard<std::mutex> guard(lock);
            all = both(all, mine);
        });
        return all;
    };
    const auto pack = [&](bool right) {
        return meet(products.pack_items(p, right), p.batch * (right ? p.b : p.a).lines * p.k,
                    [&](void* workspace, std::int64_t first, std::int64_t last) { return products.pack(p, right, workspace, first, last); });
    };
    const BlockRange b = pack(true), packed = pack(false);
    if (!b.whole || !packed.whole) return {packed, b};
    const BlockRange met = meet(products.items(p), p.batch * p.a.lines * p.b.lines * p.k,
                                [&](void* workspace, std::int64_t first, std::int64_t last) { return products.multiply(p, workspace, first, last); });
    return {both(packed, met), b};
}

// One matrix of a stack alone, for one thread.
Product matrix_of(Product p, std::int64_t matrix) {
    const auto beyond = [matrix](const void* values, Real type, std::int64_t step) {
        return static_cast<const char*>(values) + matrix * step * (type == Real::f32 ? 4 : 2);
    };
    for (Factor* f : {&p.a, &p.b}) f->values = beyond(f->values, f->type, f->batch_step);
    p.y = const_cast<char*>(beyond(p.y, p.y_type, p.a.lines * p.y_step));
    p.batch = p.threads = 1;
    return p;
}

// Panels of one matrix of this size are multiplied while they are in the cache: those of a stack would go to memory first and
// come back from there.
constexpr std::int64_t bytes_together = 1 << 21;

// All matrices, in memory of their own.
Met multiply_all(const Products& products, const Product& p, int threads) {
    const Product one = matrix_of(p, 0);
    const Room room = room_of(products, one);
    // As many for each thread that none waits long for the others.
    if (p.batch == 1 || p.batch < 4 * threads || room.of_both > bytes_together) {
        const Room of_all = room_of(products, p);
        const Scratch scratch(static_cast<std::size_t>(of_all.of_both + threads * of_all.each));
        return multiply_in(scratch.data(), of_all, products, p);
    }
    const std::int64_t each = room.of_both + room.each;
    const Scratch scratch(static_cast<std::size_t>(threads * each));
    std::mutex lock;
    Met all;
    divide(p.batch, p.batch * p.a.lines * p.b.lines * p.k, threads, [&](int thread, std::int64_t first, std::int64_t last) {
        Met mine;
        for (std::int64_t matrix = first; matrix < last && mine.a.whole && mine.b.whole; ++matrix) {
            const Met met = multiply_in(scratch.data() + thread * each, room, products, matrix_of(p, matrix));
            mine = {both(mine.a, met.a), both(mine.b, met.b)};
        }
        const std::lock_guard<std::mutex> guard(lock);
        all = {both(all.a, mine.a), both(all.b, mine.b)};
    });
    return all;
}

}  // namespace

bool multiply(const Kernels& kernels, const Products& products, Product p, int threads) {
    if (p.batch * p.a.lines * p.b.lines == 0) return true;
    p.kernels = &kernels;
    p.threads = threads;
    Met met = multiply_all(products, p, threads);
    // Zeros times an infinity are NaN: then nothing is left out.
    if (p.lower != Lower::none && !(met.a.finite && met.b.finite)) {
        p.lower = Lower::none;
        met = multiply_all(products, p, threads);
    }
    return p.subtracts ? met.a.whole && met.b.whole : fits(p.unit, met);
}

void additions(const Kernels& kernels, const Additions& job, int threads) {
    divide(job.m, job.m * job.n * job.k, threads,
           [&](int, std::int64_t first, std::int64_t last) { kernels.additions(job, first, last); });
}

void update_direction(const Systems& systems, const DirectionUpdate& job, void* workspace, int threads) {
    const std::int64_t each = systems.direction_workspace(job);
    divide(direction_items(job.a), job.a.ny * job.a.nz * job.a.stride, threads, [&](int thread, std::int64_t first, std::int64_t last) {
        systems.update_direction(job, static_cast<char*>(workspace) + thread * each, first, last);
    });
}

void update_residual(const Systems& systems, const ResidualUpdate& job, int threads) {
    divide(residual_items(job.rows), job.rows * job.stride, threads,
           [&](int, std::int64_t first, std::int64_t last) { systems.update_residual(job, first, last); });
}

void pack(const Systems& systems, const Pack& job, int threads) {
    divide(residual_items(job.rows), job.rows * job.stride, threads,
           [&](int, std::int64_t first, std::int64_t last) { systems.pack(job, first, last); });
}

void multiply(const Systems& systems, const SparseRows& a, const float* x, float* y, int threads) {
    divide(a.slices, slice * a.start[a.first[a.slices]], threads,
           [&](int, std::int64_t first, std::int64_t last) { systems.multiply_rows(a, x, y, first, last); });
}

void residuals(const Systems& systems, const Residuals& job, int threads) {
    divide(job.a.m, job.a.m * job.a.n * job.k, threads,
           [&](int, std::int64_t first, std::int64_t last) { systems.residuals(job, first, last); });
}

void extents(const Systems& systems, const Extents& job, double* columns, int threads) {
    std::mutex lock;
    std::fill(columns, columns + job.a.n, 0.0);
    divide(job.a.m, job.a.m * job.a.n, threads, [&](int, std::int64_t first, std::int64_t last) {
        std::vector<double> mine(static_cast<std::size_t>(job.a.n));
        systems.extents(job, mine.data(), first, last);
        const std::lock_guard<std::mutex> guard(lock);
        for (std::int64_t j = 0; j < job.a.n; ++j) columns[j] = std::max(columns[j], mine[static_cast<std::size_t>(j)]);
    });
}

namespace {

template <class T>
void substitute_in_blocks(const TriangleKernels<T>& kernels, const Triangle<T>& job, int threads) {
    constexpr std::int64_t together = 256;  // unknowns of a block, which one thread solves: a sixteenth of 4000's work
    const std::int64_t blocks = count_of(job.n, together);
    for (std::int64_t step = 0; step < blocks; ++step) {
        const std::int64_t begin = (job.down() ? step : blocks - 1 - step) * together, end = std::min(job.n, begin + together);
        const TriangleBlock<T> block{job, begin, end};
        const auto subtract = [&](std::int64_t items, std::int64_t columns) {
            divide(items, (end - begin) * columns * job.sides, threads,
                   [&](int, std::int64_t first, std::int64_t last) { kernels.subtract_solved(block, first, last); });
        };
        const std::int64_t others = job.upper ? job.n - end : begin;
        if (!job.transposed) subtract(end - begin, others);
        divide(job.sides, (end - begin) * (end - begin) * job.sides, threads,
               [&](int, std::int64_t first, std::int64_t last) { kernels.substitute(block, first, last); });
        if (job.transposed) subtract(others, others);
    }
}

}  // namespace

void substitute(const Systems& systems, const Triangle<float>& job, int threads) { substitute_in_blocks(systems.triangles, job, threads); }
void substitute(const Systems& systems, const Triangle<double>& job, int threads) { substitute_in_blocks(systems.triangles_double, job, threads); }

void evaluate_groups(const Kernels& kernels, const NmPermutation& s, int threads) {
    divide(s.columns / s.group, s.columns * s.rows, threads,
           [&](int, std::int64_t first, std::int64_t last) { kernels.evaluate_groups(s, first, last); });
}

void counter_uniform(const Kernels& kernels, const CounterUniform& job, std::int64_t n, int threads) {
    divide(n, n, threads, [&](int, std::int64_t first, std::int64_t last) { kernels.counter_uniform(job, first, last); });
}

namespace {

// The largest three numbers of an expansion: numbers that do not overlap, and together are the sum of all that were added
// (Shewchuk, Adaptive precision floating-point arithmetic, 1997). What three leave out is below 2^-150 of the sum.
class Expansion {
  public:
    void add(double x) {
        plain_ += x;
        int kept = 0;
        for (int i = 0; i < n_; ++i) {
            double y = numbers_[i];
            if (std::abs(x) < std::abs(y)) std::swap(x, y);
            const double sum = x + y, rest = y - (sum - x);
            if (rest != 0) numbers_[kept++] = rest;
            x = sum;
        }
        if (x != 0) numbers_[kept++] = x;
        n_ = kept;
    }

    std::array<double, 3> leading() const {
        if (!std::isfinite(plain_)) return {plain_, 0.0, 0.0};
        std::array<double, 3> largest{};
        for (int i = 0; i < 3 && i < n_; ++i) largest[static_cast<std::size_t>(i)] = numbers_[n_ - 1 - i];
        return largest;
    }

  private:
    double numbers_[64] = {}, plain_ = 0;  // numbers without overlap are 40 at most
    int n_ = 0;
};

}  // namespace

LatticeSums pass(const Systems& systems, Lattice job, int threads) {
    const std::int64_t items = items_of(job), sites = groups_in_item(job) * lattice_sites, parts = 2 * items * most_parts;
    const Scratch scratch(static_cast<std::size_t>(parts + threads * 2 * sites) * sizeof(double));
    job.parts = reinterpret_cast<double*>(scratch.data());
    std::fill_n(job.parts, parts, 0.0);
    // Item by item to whoever is free: the threads walk through the same layers, which a shared cache then holds once,
    // and none waits long for one that other work has held up.
    std::atomic<std::int64_t> next{0};
    divide(items, items * sites * job.reals, threads, [&](int thread, std::int64_t, std::int64_t) {
        Lattice mine = job;
        mine.site_sums = job.parts + parts + thread * 2 * sites;
        for (std::int64_t item = next++; item < items; item = next++) systems.lattice(mine, item, item + 1);
    });
    [[maybe_unused]] const ExactArithmetic exact;
    Expansion sums[2];
    for (std::int64_t i = 0; i < parts; ++i)
        if (job.parts[i] != 0) sums[i / most_parts % 2].add(job.parts[i]);
    return {sums[0].leading(), sums[1].leading()};
}

namespace {

// In order, so that neither threads nor chance have a part in what is rounded off.
ErrorSums added(const std::vector<ErrorSums>& items) {
    ErrorSums all{};
    for (const ErrorSums& s : items) {
        all.signal += s.signal;
        all.noise += s.noise;
        all.relative += s.relative;
        all.largest_relative = std::max(all.largest_relative, s.largest_relative);
        all.nonzero += s.nonzero;
        all.flushed += s.flushed;
        all.saturated += s.saturated;
        all.nonfinite |= s.nonfinite;
    }
    return all;
}

// Each item has its own sums, which are added when all are there.
template <class Job>
ErrorSums tally_items(void (*run)(const Job&, std::int64_t, std::int64_t), Job job, int threads) {
    std::vector<ErrorSums> sums(static_cast<std::size_t>(items_of(job.items)));
    job.sums = sums.data();
    const auto items = static_cast<std::int64_t>(sums.size());
    divide(items, job.items.lines * job.items.n, threads, [&](int, std::int64_t first, std::int64_t last) { run(job, first, last); });
    return added(sums);
}

}  // namespace

ErrorSums tally(const Kernels& kernels, Tally job, bool scale_of_line, int threads) {
    std::vector<float> largest(static_cast<std::size_t>(scale_of_line ? job.items.lines : 0));
    if (scale_of_line) {
        job.largest = largest.data();
        divide(job.items.lines, job.items.lines * job.items.n, threads,
               [&](int, std::int64_t first, std::int64_t last) { kernels.largest_of_lines(job, first, last); });
    }
    return tally_items(kernels.tally, job, threads);
}

ErrorSums tally(const Kernels& kernels, const PairTally& job, int threads) { return tally_items(kernels.tally_pairs, job, threads); }

bool feedback(const Kernels& kernels, const Feedback& job, int threads) {
    const std::int64_t n = job.quantize.geometry.n, items = kernels.feedback_items(job);
    std::atomic<bool> nonfinite{false};
    const auto run = [&](std::int64_t first, std::int64_t last) {
        if (kernels.feedback(job, first, last).nonfinite) nonfinite = true;
    };
    // The first item writes a scale that the whole array shares: all others read it.
    divide(1, n, 1, [&](int, std::int64_t, std::int64_t) { run(0, 1); });
    share(items - 1, n, threads, [&](std::int64_t first, std::int64_t last) { run(first + 1, last + 1); });
    return nonfinite;
}

void top_k(const Kernels& kernels, const TopK& job, std::int64_t* places, int threads) {
    const std::int64_t items = count_of(job.n, ranked_together);
    // Each part of the array has candidates of its own, whoever finds them: magnitudes of all parts, then places.
    const std::int64_t parts = std::clamp<std::int64_t>(job.n / values_per_thread, 1, threads);
    const std::int64_t each = room_of(job, count_of(items, parts) * ranked_together);
    const Scratch scratch(static_cast<std::size_t>(2 * parts * each) * sizeof(std::int32_t));
    auto* const room = reinterpret_cast<std::int32_t*>(scratch.data());
    const auto from = [&](std::int64_t at) { return Candidates{room + at, room + parts * each + at}; };
    std::vector<std::int64_t> found(static_cast<std::size_t>(parts));
    divide(parts, job.n, threads, [&](int, std::int64_t first, std::int64_t last) {
        for (std::int64_t part = first; part < last; ++part)
            found[static_cast<std::size_t>(part)] = kernels.top_k(job, from(part * each), items * part / parts, items * (part + 1) / parts);
    });
    // Side by side, their places still rise.
    std::int64_t all = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t n = found[static_cast<std::size_t>(part)];
        const Candidates source = from(part * each), target = from(all);
        std::copy(source.magnitudes, source.magnitudes + n, target.magnitudes);
        std::copy(source.places, source.places + n, target.places);
        all += n;
    }
    kernels.keep_largest(from(0), all, job.k);
    std::copy(from(0).places, from(0).places + job.k, places);
}

Magnitudes measure(const Kernels& kernels, const void* in, Real type, const Geometry& g, int threads) {
    std::mutex lock;
    Magnitudes all{0.0, std::numeric_limits<double>::infinity(), false};
    share(kernels.measure_items(g), lines_in(g) * g.n, threads, [&](std::int64_t first, std::int64_t last) {
        const Magnitudes mine = kernels.measure(in, type, g, first, last);
        const std::lock_guard<std::mutex> guard(lock);
        all = {std::max(all.largest, mine.largest), std::min(all.smallest, mine.smallest), all.nonfinite || mine.nonfinite};
    });
    return all;
}

}  // namespace fewbits
