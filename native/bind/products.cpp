// Products of matrices, packed and dense: checks, unwraps and calls; no arithmetic.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "bind/arrays.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = Lent<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;
using Rows = Lent<nb::ndarray<nb::c_contig, nb::device::cpu>>;

Unit unit_of(const std::string& name) {
    if (name == "integers") return Unit::integers;
    if (name == "integers16") return Unit::integers16;
    if (name == "bfloat16") return Unit::bfloat16;
    if (name == "bfloat16x2") return Unit::bfloat16x2;
    require(name == "float32", "a unit is integers, integers16, bfloat16, bfloat16x2 or float32");
    return Unit::float32;
}

Lower lower_of(const std::string& name) {
    if (name == "result") return Lower::result;
    if (name == "left") return Lower::left;
    if (name == "left transposed") return Lower::left_transposed;
    if (name == "right") return Lower::right;
    require(name.empty(), "lower triangular is the result, left, left transposed, right, or nothing");
    return Lower::none;
}

bool has_unit(const std::string& name) { return active().products.has(unit_of(name)); }

void gemv_of(const Format& format, ConstRows x, std::size_t batch, bool narrow, ConstBytes codes,
             std::optional<ConstBytes> scales, std::optional<ConstBytes> shifts, std::optional<ConstFloats> outer,
             Rows y, int threads, std::optional<Format> activation) {
    check(format);
    require(batch > 0 && x.size() % batch == 0 && y.size() % batch == 0, "x is (batch, n) and y (batch, lines)");
    const std::size_t n = x.size() / batch;
    require(format.keep == 0 || n % static_cast<std::size_t>(format.group) == 0, "lines are whole groups");
    const Real type = type_of(x);
    require(type == type_of(y), "x and y are of one type");
    Geometry g{};
    g.n = static_cast<std::int64_t>(n);
    g.axes = 1;
    g.extent[0] = static_cast<std::int64_t>(y.size() / batch);
    check_parts(format, g, codes, scales, shifts, outer);
    if (activation) {
        check(*activation);
        const bool integers = activation->grid.bits == 8 && activation->scales == Scales::real && activation->scale_bits == 32;
        require(integers && activation->block == 32, "x is rounded to int8 with a float32 for each 32 values");
    }
    const Implementation& implementation = active();
    const Gemv job{
        .format = format,
        .lines = g.extent[0],
        .n = g.n,
        .codes = codes.data(),
        .scales = data_of(scales),
        .shifts = data_of(shifts),
        .outer = data_of(outer),
        .x = nullptr,
        .narrow = narrow,
        .x_codes = nullptr,
        .x_scales = nullptr,
        .byte_products = implementation.byte_products,
        .batch = static_cast<std::int64_t>(batch),
        .panels = nullptr,
        .y = nullptr,
        .stride = g.extent[0],
    };
    nb::gil_scoped_release released;
    gemv(implementation.kernels, job, x.data(), y.data(), type, activation ? &*activation : nullptr, threads);
}

using Matrices = nb::ndarray<nb::ro, nb::ndim<3>, nb::device::cpu>;
using OutMatrices = nb::ndarray<nb::ndim<3>, nb::device::cpu>;

// A factor, its lines along `axis` of each matrix.
Factor factor_of(const Matrices& x, int axis, const std::optional<Format>& format) {
    const int along = 3 - axis;
    // The step between lines of which there is one, or no value, says nothing.
    const auto step = [&](int i) { return x.shape(static_cast<std::size_t>(i)) > 1 ? x.stride(static_cast<std::size_t>(i)) : 1; };
    require(step(axis) == 1 || step(along) == 1, "neither the rows nor the columns of a factor lie side by side");
    if (format) {
        check(*format);
        require(format->keep == 0, "only gemv reads a sparse format");
        require(format->rounding != Rounding::stochastic, "draws follow the place of a value in the whole array");
        require(!has_blocks(*format) || 256 % format->block == 0, "blocks do not divide what is rounded together");
        require(format->scales != Scales::two_level && !one_scale(*format), "a scale of the whole array is not of its parts");
    }
    return {
        .values = x.data(),
        .type = type_of_array(x),
        .lines = static_cast<std::int64_t>(x.shape(static_cast<std::size_t>(axis))),
        .line_step = step(axis),
        .step = step(along),
        .batch_step = step(0),
        .format = format ? &*format : nullptr,
    };
}

bool product_of(const std::string& unit, Matrices a, std::optional<Format> of_a, Matrices b, std::optional<Format> of_b,
                std::int64_t block, OutMatrices y, int threads, const std::string& lower, bool subtracts) {
    require(a.shape(0) == b.shape(0) && a.shape(0) == y.shape(0), "as many matrices on the left as on the right and in y");
    require(b.shape(1) == a.shape(2), "b needs as many rows as a has columns");
    require(y.shape(1) == a.shape(1) && y.shape(2) == b.shape(2), "y needs the rows of a and the columns of b");
    require(block == 16 || block == 32, "a block is of 16 or 32 values");
    const std::int64_t y_step = y.shape(1) > 1 ? y.stride(1) : y.shape(0) > 1 ? y.stride(0) : static_cast<std::int64_t>(y.shape(2));
    require(y.size() == 0 || y.shape(2) <= 1 || y.stride(2) == 1, "the rows of y lie side by side");
    require(y.shape(0) * y.shape(1) <= 1 || std::abs(y_step) >= static_cast<std::int64_t>(y.shape(2)), "the rows of y lie in each other");
    require(y.size() == 0 || y.shape(0) == 1 || y.stride(0) == static_cast<std::int64_t>(y.shape(1)) * y_step, "the matrices of y follow each other");
    const Implementation& implementation = active();
    const Unit multiplied = unit_of(unit);
    const Product product{
        .unit = multiplied,
        .a = factor_of(a, 1, of_a),
        .b = factor_of(b, 2, of_b),
        .batch = static_cast<std::int64_t>(a.shape(0)),
        .k = static_cast<std::int64_t>(a.shape(2)),
        .block = is_integers(multiplied) ? block : 32,  // floats share no scale
        .y = y.data(),
        .y_type = type_of_array(y),
        .y_step = y_step,
        .subtracts = subtracts,
        .lower = lower_of(lower),
        .kernels = nullptr,
        .panels = nullptr,
        .left_panels = nullptr,
        .threads = 1,
    };
    require(!subtracts || (is_bfloat16(multiplied) && product.y_type == Real::f32 && product.lower == Lower::none),
            "products of bfloat16 are subtracted from float32");
    require(subtracts || multiplied != Unit::bfloat16x2, "a product of two terms is subtracted");
    require(!is_bfloat16(multiplied) || implementation.products.has(multiplied), "this CPU has no such products of bfloat16");
    nb::gil_scoped_release released;
    return multiply(implementation.kernels, implementation.products, product, threads);
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

void plane_product(ConstBytes codes, int weight_bits, nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> x, int bits,
                   bool is_signed, std::optional<ConstFloats> scales, ConstFloats x_scales, bool by_bytes, OutMatrix y, int threads) {
    const auto batch = static_cast<std::int64_t>(x.shape(0)), n = static_cast<std::int64_t>(x.shape(1)), lines = static_cast<std::int64_t>(y.shape(1));
    require(weight_bits == 1 || weight_bits == 2, "a weight has one bit or two");
    require(bits >= 1 && bits <= 8, "a value of x has 1 to 8 bits");
    require(y.shape(0) == x.shape(0) && x_scales.size() == x.shape(0), "x, its scales and y have as many rows");
    require(static_cast<std::int64_t>(codes.size()) == lines * bytes_for(n, weight_bits), "codes have the wrong size");
    require(!scales || scales->size() == 1 || static_cast<std::int64_t>(scales->size()) == lines, "a scale for each line, or one");
    require(!by_bytes || (weight_bits == 2 && n <= most_by_bytes && (is_signed || bits < 8)), "these are not to be multiplied as bytes");
    const Implementation& implementation = active();
    const Planes job{
        .codes = codes.data(),
        .lines = lines,
        .n = n,
        .weight_bits = weight_bits,
        .x = x.data(),
        .bits = bits,
        .is_signed = is_signed,
        .batch = batch,
        .scales = data_of(scales),
        .scale_step = scales && scales->size() > 1 ? 1 : 0,
        .x_scales = x_scales.data(),
        .by_bytes = by_bytes,
        .byte_products = implementation.byte_products,
        .panels = nullptr,
        .y = y.data(),
    };
    nb::gil_scoped_release released;
    multiply(implementation.kernels, job, threads);
}

}  // namespace

void fewbits::bind_products(nb::module_& m) {
    m.def("gemv", &gemv_of, "format"_a, "x"_a.noconvert(), "batch"_a, "narrow"_a, "codes"_a.noconvert(),
          "scales"_a.noconvert().none(), "shifts"_a.noconvert().none(), "outer"_a.noconvert().none(), "y"_a.noconvert(),
          "threads"_a, "activation"_a.none() = nb::none(),
          "Write x (batch, n), rounded to `activation` if there is one, times the transpose of the packed (lines, n) into y"
          " (batch, lines).");
    m.def("has_unit", &has_unit, "unit"_a, "Return whether the instruction set in use multiplies by `unit` faster than by float32.");
    m.def("product", &product_of, "unit"_a, "a"_a.noconvert(), "format_a"_a.none(), "b"_a.noconvert(), "format_b"_a.none(),
          "block"_a, "y"_a.noconvert(), "threads"_a, "lower"_a = "", "subtracts"_a = false,
          "Write a (batch, m, k) times b (batch, k, n), rounded to their formats along k, into y, or subtract it there; return false, with numbers of no"
          " meaning in y, where the unit cannot.");
    m.def("plane_product", &plane_product, "codes"_a.noconvert(), "weight_bits"_a, "x"_a.noconvert(), "bits"_a, "is_signed"_a,
          "scales"_a.noconvert().none(), "x_scales"_a.noconvert(), "by_bytes"_a, "y"_a.noconvert(), "threads"_a,
          "Write the integers x (batch, n) times those of the packed weights (lines, n), times the scales of both, into y (batch, lines).");
    m.def("addition_product", &addition_product, "a"_a.noconvert(), "b"_a.noconvert(), "y"_a.noconvert(), "threads"_a,
          "Write a b into y, multiplied by sums of bit patterns.");
}
