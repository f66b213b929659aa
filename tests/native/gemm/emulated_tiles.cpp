// Products of bfloat16 by emulated tiles beside sums in double. Says of each unit the largest error as a part of its bound;
// all memory is as large as the kernels ask for, so that a sanitizer sees a step beyond it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "jobs/product.hpp"
#include "kernels/headers.hpp"

namespace fewbits {
namespace {
#include "kernels/gemm/product.inc.hpp"
}  // namespace
}  // namespace fewbits

using namespace fewbits;

namespace {

struct Free {
    void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::uint8_t, Free>;
Memory memory(std::int64_t bytes) {
    return Memory(static_cast<std::uint8_t*>(std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64))));
}

float draw() {
    static std::uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-30f;
}
float nearest_bfloat16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

std::vector<float> values(std::int64_t count, bool narrow) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& v : x) v = narrow ? nearest_bfloat16(draw()) : draw();
    return x;
}

// A factor of `lines` lines of k values, each line side by side or its values a line apart.
Factor factor(const std::vector<float>& x, std::int64_t lines, std::int64_t k, bool along) {
    return {x.data(), Real::f32, lines, along ? k : 1, along ? 1 : lines, lines * k, nullptr};
}
double value(const Factor& f, std::int64_t matrix, std::int64_t line, std::int64_t place) {
    return static_cast<const float*>(f.values)[matrix * f.batch_step + line * f.line_step + place * f.step];
}

// The largest error of one product, as a part of its bound; `apart` is what lies between rows of y.
double error(Unit unit, std::int64_t batch, std::int64_t m, std::int64_t k, std::int64_t n, bool a_along, bool b_along, bool subtracts,
             std::int64_t apart, Lower lower) {
    const bool narrow = unit == Unit::bfloat16;
    std::vector<float> a = values(batch * m * k, narrow), b = values(batch * n * k, narrow);
    const std::vector<float> before = values(batch * m * (n + apart), false);
    std::vector<float> y = before;
    Product p{};
    p.unit = unit;
    p.a = factor(a, m, k, a_along);
    p.b = factor(b, n, k, b_along);
    p.batch = batch;
    p.k = k;
    p.block = 32;
    p.y = y.data();
    p.y_type = Real::f32;
    p.y_step = n + apart;
    p.subtracts = subtracts;
    p.lower = lower;
    // Beyond the diagonal of a factor are zeros: in a of m rows where the column is larger, in b where it is the row.
    for (std::int64_t matrix = 0; matrix < batch; ++matrix)
        for (std::int64_t i = 0; i < k; ++i) {
            for (std::int64_t row = 0; lower == Lower::left && row < m && row < i; ++row)
                a[static_cast<std::size_t>(matrix * p.a.batch_step + row * p.a.line_step + i * p.a.step)] = 0.0f;
            for (std::int64_t column = i + 1; lower == Lower::right && column < n; ++column)
                b[static_cast<std::size_t>(matrix * p.b.batch_step + column * p.b.line_step + i * p.b.step)] = 0.0f;
        }
    p.threads = 1;
    const Products& products = product::functions;
    const Memory right = memory(products.panel_bytes(p, true)), left = memory(products.panel_bytes(p, false));
    const Memory workspace = memory(std::max(products.pack_workspace(p), products.workspace(p)));
    p.panels = right.get();
    p.left_panels = left.get();
    products.pack(p, true, workspace.get(), 0, products.pack_items(p, true));
    products.pack(p, false, workspace.get(), 0, products.pack_items(p, false));
    products.multiply(p, workspace.get(), 0, products.items(p));
    // Sums of float32, and what two terms of eight bits leave of a product: 2^-18 of each factor, and of both at once.
    const double terms = unit == Unit::bfloat16x2 ? 3 : 1, rest = unit == Unit::bfloat16x2 ? 0x3p-18 : 0.0;
    double worst = 0.0;
    for (std::int64_t row = 0; row < batch * m; ++row)
        for (std::int64_t column = 0; column < n + apart; ++column) {
            const auto at = static_cast<std::size_t>(row * (n + apart) + column);
            if (lower == Lower::result && column > row % m) continue;  // zeros or sums
            if (column >= n) {  // between rows nothing changes
                if (y[at] != before[at]) return INFINITY;
                continue;
            }
            double sum = 0.0, size = 0.0;
            for (std::int64_t i = 0; i < k; ++i) {
                const double each = value(p.a, row / m, row % m, i) * value(p.b, row / m, column, i);
                sum += each;
                size += std::fabs(each);
            }
            const double expected = subtracts ? before[at] - sum : sum, whole = subtracts ? size + std::fabs(before[at]) : size;
            const double bound = ((terms * static_cast<double>(k) + 3) * 0x1p-24 + rest) * whole;
            worst = std::fmax(worst, std::fabs(y[at] - expected) / (bound > 0 ? bound : 1e-300));
        }
    return worst;
}

// Whether NaN of any bits is NaN in both terms, and infinity neither more nor less.
bool keeps_what_is_not_finite() {
    const auto is_nan = [](product::Bits x) { return (x[0] & 0x7fffffff) > 0x7f800000; };
    for (const std::int32_t bits : {0x7fffffff, 0x7f800001, 0x7fc00000, -1}) {
        const pack::Terms terms = pack::terms_of(product::Bits{} + bits);
        if (!is_nan(terms.first) || !is_nan(terms.second)) return false;
    }
    return pack::terms_of(product::Bits{} + 0x7f800000).first[0] == 0x7f800000;
}

}  // namespace

int main() {
    if (!keeps_what_is_not_finite()) return 1;
    constexpr std::int64_t shapes[][3] = {{1, 1, 1},   {5, 33, 7},    {31, 64, 33},  {32, 32, 32},  {33, 257, 65}, {64, 256, 96},
                                          {7, 700, 1}, {200, 40, 63}, {193, 300, 70}, {40, 60, 1600}, {3, 0, 5}};
    for (const Unit unit : {Unit::bfloat16, Unit::bfloat16x2}) {
        double worst = 0.0;
        for (const auto& s : shapes)
            for (int options = 0; options < 8; ++options) {
                const bool subtracts = unit == Unit::bfloat16x2 || options & 4;
                const auto of = [&](Lower lower, bool subtracted) {
                    return error(unit, options == 3 || options == 6 ? 2 : 1, s[0], s[1], s[2], options & 1, options & 2, subtracted,
                                 options & 4 ? 5 : 0, lower);
                };
                worst = std::fmax(worst, of(Lower::none, subtracts));
                if (unit == Unit::bfloat16x2) continue;
                for (const Lower lower : {Lower::result, Lower::left, Lower::right}) worst = std::fmax(worst, of(lower, false));
            }
        std::printf("%s %.3f\n", unit == Unit::bfloat16 ? "bfloat16" : "bfloat16x2", worst);
    }
}
