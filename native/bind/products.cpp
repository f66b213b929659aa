// Products of matrices, packed and dense: checks, unwraps and calls; no arithmetic.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <optional>
#include <utility>

#include "bind/arrays.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void gemv_of(const Format& format, ConstFloats x, bool narrow, ConstBytes codes,
             std::optional<ConstBytes> scales, std::optional<ConstBytes> shifts, std::optional<ConstFloats> outer, Floats y,
             int threads) {
    check(format);
    require(x.ndim() == 2 && y.ndim() == 2 && x.shape(0) == y.shape(0), "x is (batch, n) and y (batch, lines)");
    require(format.keep == 0 || x.shape(1) % static_cast<std::size_t>(format.group) == 0, "lines are whole groups");
    check_aligned(x, sizeof(float));
    check_aligned(y, sizeof(float));
    Geometry g{};
    g.n = static_cast<std::int64_t>(x.shape(1));
    g.axes = 1;
    g.extent[0] = static_cast<std::int64_t>(y.shape(1));
    check_parts(format, g, codes, scales, shifts, outer);
    const Gemv job{
        .format = format,
        .lines = g.extent[0],
        .n = g.n,
        .codes = codes.data(),
        .scales = data_of(scales),
        .shifts = data_of(shifts),
        .outer = data_of(outer),
        .x = x.data(),
        .narrow = narrow,
        .batch = static_cast<std::int64_t>(x.shape(0)),
        .y = y.data(),
        .stride = g.extent[0],
    };
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    gemv(implementation.kernels, job, threads);
}

void bfloat16_product(Matrix a, Matrix b, OutMatrix y, Words packed_a, Words packed_b, int threads) {
    const auto m = static_cast<std::int64_t>(a.shape(0)), k = static_cast<std::int64_t>(a.shape(1));
    const auto n = static_cast<std::int64_t>(b.shape(1));
    require(has_bfloat16_products(), "this CPU has no products of bfloat16");
    require(b.shape(0) == a.shape(1), "b needs as many rows as a has columns");
    require(y.shape(0) == a.shape(0) && y.shape(1) == b.shape(1), "y needs the rows of a and the columns of b");
    require(static_cast<std::int64_t>(packed_a.size()) >= packed_a_size(m, k), "packed_a is too short");
    require(static_cast<std::int64_t>(packed_b.size()) >= packed_b_size(k, n), "packed_b is too short");
    require(packed_b.size() == 0 ||
                reinterpret_cast<std::uintptr_t>(packed_b.data()) % 64 == 0,
            "packed_b must lie at a multiple of 64 bytes");
    const Product product{
        .a = a.data(),
        .b = b.data(),
        .y = y.data(),
        .m = m,
        .n = n,
        .k = k,
        .packed_a = packed_a.data(),
        .packed_b = packed_b.data(),
    };
    nb::gil_scoped_release released;
    multiply(product, threads);
}

void addition_product(Matrix a, Matrix b, OutMatrix y, int threads) {
    require(b.shape(0) == a.shape(1), "b needs as many rows as a has columns");
    require(y.shape(0) == a.shape(0) && y.shape(1) == b.shape(1), "y needs the rows of a and the columns of b");
    const Additions job{
        .a = a.data(),
        .b = b.data(),
        .y = y.data(),
        .m = static_cast<std::int64_t>(a.shape(0)),
        .n = static_cast<std::int64_t>(b.shape(1)),
        .k = static_cast<std::int64_t>(a.shape(1)),
    };
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    additions(implementation.kernels, job, threads);
}

std::pair<std::int64_t, std::int64_t> packed_sizes(std::int64_t m, std::int64_t n, std::int64_t k) {
    return {packed_a_size(m, k), packed_b_size(k, n)};
}

}  // namespace

void fewbits::bind_products(nb::module_& m) {
    m.def("gemv", &gemv_of, "format"_a, "x"_a.noconvert(), "narrow"_a, "codes"_a.noconvert(),
          "scales"_a.noconvert().none(), "shifts"_a.noconvert().none(), "outer"_a.noconvert().none(), "y"_a.noconvert(),
          "threads"_a, "Write x (batch, n) times the transpose of the packed (lines, n) into y (batch, lines).");
    m.def("has_bfloat16_products", &has_bfloat16_products, "Return whether this build and this CPU have them.");
    m.def("packed_sizes", &packed_sizes, "m"_a, "n"_a, "k"_a, "Return the room that bfloat16_product needs for a and for b.");
    m.def("bfloat16_product", &bfloat16_product, "a"_a.noconvert(), "b"_a.noconvert(), "y"_a.noconvert(),
          "packed_a"_a.noconvert(), "packed_b"_a.noconvert(), "threads"_a,
          "Write a b into y, for matrices of float32 that are all bfloat16.");
    m.def("addition_product", &addition_product, "a"_a.noconvert(), "b"_a.noconvert(), "y"_a.noconvert(), "threads"_a,
          "Write a b into y, multiplied by sums of bit patterns.");
}
