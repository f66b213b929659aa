// What Python sees: checks, unwraps and calls; no arithmetic.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/exact.hpp"
#include "dispatch/nontemporal.hpp"
#include "jobs/layout.hpp"
#include "dispatch/parallel.hpp"
#ifdef FEWBITS_SANITIZE
#include "sanitizer_faults.hpp"
#endif

using namespace fewbits;

namespace {

using Values = nb::ndarray<nb::device::cpu>;
using ConstValues = nb::ndarray<nb::ro, nb::device::cpu>;
template <class T>
using Line = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

// The ranges that the kernels rely on; the Python side has messages for people, these guard memory and arithmetic.
void check(const Grid& g) {
    require(g.bits >= 1 && g.bits <= 32, "bits must be from 1 to 32");
    require(g.m >= 0 && g.m <= 23, "m must be from 0 to 23");
    require(g.emin >= -126 && g.emin <= 127, "emin must be from -126 to 127");
}

void check(const Format& f) {
    if (f.tabled)
        require(f.table.count >= 2 && f.table.keys != nullptr, "a format of a table needs its table");
    else
        check(f.grid);
    require(f.block >= 1 && f.sub_block >= 1, "block and sub_block must be at least 1");
    require(f.scale_bits >= 0 && f.scale_bits <= 32 && f.shift_bits >= 0 && f.shift_bits <= 4,
            "scales have at most 32 bits, shifts at most 4");
    require(f.scale_emin >= -127 && f.scale_emax <= 127 && f.scale_emin <= f.scale_emax,
            "scale exponents must be within -127 to 127");
    require(f.scales != Scales::shifted || f.sub_block <= 512, "values that share a shift must fit a tile of 512");
    require(f.keep == 0 || (f.keep >= 1 && f.keep < f.group && f.group <= 64), "a pattern keeps N of M with 1 <= N < M <= 64");
    require(f.largest_shift >= 0 && f.largest_shift <= 15, "largest_shift must be from 0 to 15");
    if (f.scales == Scales::real || f.scales == Scales::two_level) check(f.scale_grid);
}

template <class Array>
void check_aligned(const Array& x, std::size_t size) {
    require(reinterpret_cast<std::uintptr_t>(x.data()) % size == 0, "an address is no multiple of the size of a value");
}

// bfloat16 arrays of NumPy come as their 16-bit patterns.
template <class Array>
Real type_of(const Array& x) {
    const nb::dlpack::dtype t = x.dtype();
    check_aligned(x, t.bits == 32 ? 4 : 2);
    if (t.lanes == 1 && t.bits == 32 && t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float))
        return Real::f32;
    require(t.lanes == 1 && t.bits == 16, "values must be float32, float16 or bfloat16");
    return t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) ? Real::f16 : Real::bf16;
}

// Sizes of the packed parts, which the kernels write or read whole.
template <class Codes, class Parts, class Outers>
void check_parts(const Format& f, const Geometry& g, const Codes& codes, const std::optional<Parts>& scales,
                 const std::optional<Parts>& shifts, const std::optional<Outers>& outer) {
    const std::int64_t lines = lines_in(g);
    const LineBytes bytes = line_bytes(f, g.n);
    const auto holds = [](const auto& part, std::int64_t size) {
        return part.has_value() && static_cast<std::int64_t>(part->size()) == size;
    };
    require(static_cast<std::int64_t>(codes.size()) == lines * bytes.codes, "codes have the wrong size");
    if (f.scales == Scales::none) return;
    require(holds(scales, one_scale(f) ? bytes_for(1, f.scale_bits) : lines * bytes.scales), "scales have the wrong size");
    if (f.scales == Scales::shifted && f.shift_bits) require(holds(shifts, lines * bytes.shifts), "shifts have the wrong size");
    if (f.scales != Scales::two_level) return;
    require(holds(outer, f.whole_known ? 1 : lines), "outer has the wrong size");
    check_aligned(*outer, sizeof(float));
}

template <class T>
auto* data_of(const std::optional<T>& part) {
    return part.has_value() ? part->data() : nullptr;
}

void check_values(const Geometry& g, std::size_t count) {
    require(static_cast<std::int64_t>(count) == lines_in(g) * g.n, "the array has another number of values");
}

bool past_caches(const Values& out) { return nontemporal(static_cast<std::int64_t>(out.nbytes())); }

std::pair<std::string, bool> fake_quantize(const Format& format, const Geometry& geometry, ConstValues in, Values out,
                                           int threads) {
    check(format);
    require(format.keep == 0, "only products read a sparse format");
    check_values(geometry, in.size());
    check_values(geometry, out.size());
    const Job job{format, geometry, in.data(), type_of(in), out.data(), type_of(out), nullptr, nullptr, nullptr, nullptr, past_caches(out)};
    const Implementation& one = active();
    nb::gil_scoped_release released;
    const Outcome outcome = convert(one.kernels, job, threads);
    return {outcome.isa == nullptr ? one.name : outcome.isa, outcome.nonfinite};
}

std::pair<std::string, bool> quantize(const Format& format, const Geometry& geometry, ConstValues in, Bytes codes,
                                      std::optional<Bytes> scales, std::optional<Bytes> shifts,
                                      std::optional<Floats> outer, int threads) {
    check(format);
    require(format.keep == 0, "only products read a sparse format");
    check_values(geometry, in.size());
    check_parts(format, geometry, codes, scales, shifts, outer);
    const Job job{format,           geometry,        in.data(),       type_of(in),     nullptr, Real::f32,
                  codes.data(),     data_of(scales), data_of(shifts), data_of(outer), false};
    const Implementation& one = active();
    nb::gil_scoped_release released;
    const Outcome outcome = convert(one.kernels, job, threads);
    return {outcome.isa == nullptr ? one.name : outcome.isa, outcome.nonfinite};
}

void dequantize(const Format& format, const Geometry& geometry, ConstBytes codes, std::optional<ConstBytes> scales,
                std::optional<ConstBytes> shifts, std::optional<ConstFloats> outer, Values out, int threads) {
    check(format);
    require(format.keep == 0, "only products read a sparse format");
    check_values(geometry, out.size());
    check_parts(format, geometry, codes, scales, shifts, outer);
    const Restore job{format,         geometry,   codes.data(),  data_of(scales), data_of(shifts),
                      data_of(outer), out.data(), type_of(out), past_caches(out)};
    const Implementation& one = active();
    nb::gil_scoped_release released;
    restore(one.kernels, job, threads);
}

void gemv_of(const Format& format, ConstFloats x, bool narrow, std::optional<ConstFloats> permuted, ConstBytes codes, std::optional<ConstBytes> scales,
                  std::optional<ConstBytes> shifts, std::optional<ConstFloats> outer, Floats y, int threads) {
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
    require(!permuted || (x.shape(0) == 1 && permuted->size() >= x.shape(1) / 128 * 128), "permuted is one vector");
    const Gemv job{format,          g.extent[0],     g.n,      codes.data(), data_of(scales),
                   data_of(shifts), data_of(outer), x.data(), narrow, data_of(permuted), static_cast<std::int64_t>(x.shape(0)), y.data(), g.extent[0]};
    const Implementation& one = active();
    nb::gil_scoped_release released;
    gemv(one.kernels, job, threads);
}

void bfloat16_product(Matrix a, Matrix b, OutMatrix y, Words packed_a, Words packed_b, int threads) {
    const auto m = static_cast<std::int64_t>(a.shape(0)), k = static_cast<std::int64_t>(a.shape(1));
    const auto n = static_cast<std::int64_t>(b.shape(1));
    require(has_bfloat16_products(), "this CPU has no products of bfloat16");
    require(b.shape(0) == a.shape(1), "b needs as many rows as a has columns");
    require(y.shape(0) == a.shape(0) && y.shape(1) == b.shape(1), "y needs the rows of a and the columns of b");
    require(static_cast<std::int64_t>(packed_a.size()) >= packed_a_size(m, k), "packed_a is too short");
    require(static_cast<std::int64_t>(packed_b.size()) >= packed_b_size(k, n), "packed_b is too short");
    require(packed_b.size() == 0 || reinterpret_cast<std::uintptr_t>(packed_b.data()) % 64 == 0, "packed_b must lie at a multiple of 64 bytes");
    const Product product{a.data(), b.data(), y.data(), m, n, k, packed_a.data(), packed_b.data()};
    nb::gil_scoped_release released;
    multiply(product, threads);
}

void addition_product(Matrix a, Matrix b, OutMatrix y, int threads) {
    require(b.shape(0) == a.shape(1), "b needs as many rows as a has columns");
    require(y.shape(0) == a.shape(0) && y.shape(1) == b.shape(1), "y needs the rows of a and the columns of b");
    const Additions job{a.data(), b.data(), y.data(), static_cast<std::int64_t>(a.shape(0)), static_cast<std::int64_t>(b.shape(1)),
                        static_cast<std::int64_t>(a.shape(1))};
    const Implementation& one = active();
    nb::gil_scoped_release released;
    add(one.kernels, job, threads);
}

std::tuple<double, double, bool> magnitudes(const Geometry& geometry, ConstValues in, int threads) {
    check_values(geometry, in.size());
    const Real type = type_of(in);
    const void* data = in.data();
    const Implementation& one = active();
    nb::gil_scoped_release released;
    const Magnitudes found = measure(one.kernels, data, type, geometry, threads);
    return {found.largest, found.smallest, found.nonfinite};
}

Geometry geometry_of(std::int64_t n, std::int64_t step, std::int64_t place_step, const std::vector<std::int64_t>& extent,
                     const std::vector<std::int64_t>& stride, const std::vector<std::int64_t>& place_stride) {
    require(extent.size() <= most_axes, "at most eight axes besides the line");
    require(stride.size() == extent.size() && place_stride.size() == extent.size(), "one stride for each axis");
    Geometry g{n, step, place_step, static_cast<std::int32_t>(extent.size()), {}, {}, {}};
    for (std::size_t i = 0; i < extent.size(); ++i) {
        g.extent[i] = extent[i];
        g.stride[i] = stride[i];
        g.place_stride[i] = place_stride[i];
    }
    return g;
}

void set_table(Format& f, std::int32_t bits, std::int32_t steps, Line<std::int32_t> keys, Line<std::int32_t> base,
               Line<std::int32_t> codes, Line<double> values, Line<double> by_code, std::int32_t nan, bool has_nan,
               bool infinity_is_nan, bool negative_is_nan) {
    const auto count = static_cast<std::int32_t>(codes.shape(0));
    require(bits >= 1 && bits <= 16 && by_code.shape(0) == std::size_t{1} << bits, "by_code has 2^bits values");
    require(count >= 2 && values.shape(0) == codes.shape(0) && keys.shape(0) + 1 == codes.shape(0),
            "one value for each code and one key between two");
    require(base.shape(0) == 65536 && steps >= 0 && steps <= 16, "base has 2^16 entries, steps are at most 16");
    f.tabled = true;
    f.table = {bits,          count,          steps, keys.data(), base.data(),     codes.data(),
               values.data(), by_code.data(), nan,   has_nan,     infinity_is_nan, negative_is_nan};
}

std::vector<std::string> isa_names(bool available) {
    std::vector<std::string> names;
    for (const Implementation& i : implementations())
        if (!available || i.runs_here()) names.emplace_back(i.name);
    return names;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled kernels of fewbits; fewbits.kernels.native is their public side.";

    nb::enum_<Rounding>(m, "Rounding")
        .value("nearest_even", Rounding::nearest_even)
        .value("nearest_away", Rounding::nearest_away)
        .value("toward_zero", Rounding::toward_zero)
        .value("up", Rounding::up)
        .value("down", Rounding::down)
        .value("stochastic", Rounding::stochastic);
    nb::enum_<Sign>(m, "Sign")
        .value("none", Sign::none)
        .value("bit", Sign::bit)
        .value("twos_complement", Sign::twos_complement);
    nb::enum_<Overflow>(m, "Overflow")
        .value("saturate", Overflow::saturate)
        .value("inf", Overflow::inf)
        .value("nan", Overflow::nan);
    nb::enum_<Nonfinite>(m, "Nonfinite")
        .value("element", Nonfinite::element)
        .value("block_nan", Nonfinite::block_nan)
        .value("saturate", Nonfinite::saturate)
        .value("refuse", Nonfinite::raise);
    nb::enum_<Scales>(m, "Scales")
        .value("none", Scales::none)
        .value("power_of_two", Scales::power_of_two)
        .value("shifted", Scales::shifted)
        .value("real", Scales::real)
        .value("two_level", Scales::two_level);

    nb::class_<Grid>(m, "Grid", "A float or fixed-point format as plain numbers; native/jobs/job.hpp.")
        .def(nb::init<>())
        .def_rw("bits", &Grid::bits)
        .def_rw("m", &Grid::m)
        .def_rw("emin", &Grid::emin)
        .def_rw("limit_above", &Grid::limit_above)
        .def_rw("limit_below", &Grid::limit_below)
        .def_rw("nan", &Grid::nan)
        .def_rw("inf", &Grid::inf)
        .def_rw("sign", &Grid::sign)
        .def_rw("signed_zero", &Grid::signed_zero)
        .def_rw("has_nan", &Grid::has_nan)
        .def_rw("quick", &Grid::quick);

    nb::class_<Format>(m, "Format", "A format and how to round to it, as plain numbers; native/jobs/job.hpp.")
        .def(nb::init<>())
        .def(nb::init<const Format&>(), nb::keep_alive<1, 2>())  // a copy reads the same table
        .def_rw("grid", &Format::grid)
        .def_rw("rounding", &Format::rounding)
        .def_rw("overflow", &Format::overflow)
        .def_rw("nonfinite", &Format::nonfinite)
        .def_rw("seed", &Format::seed)
        .def_rw("scales", &Format::scales)
        .def_rw("block", &Format::block)
        .def_rw("sub_block", &Format::sub_block)
        .def_rw("scale_bits", &Format::scale_bits)
        .def_rw("shift_bits", &Format::shift_bits)
        .def_rw("rule_first", &Format::rule_first)
        .def_rw("rule_plus", &Format::rule_plus)
        .def_rw("emax", &Format::emax)
        .def_rw("element_max", &Format::element_max)
        .def_rw("scale_emin", &Format::scale_emin)
        .def_rw("scale_emax", &Format::scale_emax)
        .def_rw("scale_bias", &Format::scale_bias)
        .def_rw("scale_zero", &Format::scale_zero)
        .def_rw("scale_nan", &Format::scale_nan)
        .def_rw("largest_shift", &Format::largest_shift)
        .def_rw("scale_grid", &Format::scale_grid)
        .def_rw("scale_smallest", &Format::scale_smallest)
        .def_rw("scale_of_zeros", &Format::scale_of_zeros)
        .def_rw("fill", &Format::fill)
        .def_rw("whole_known", &Format::whole_known)
        .def_rw("whole", &Format::whole)
        .def_rw("whole_bad", &Format::whole_bad)
        .def_rw("keep", &Format::keep)
        .def_rw("group", &Format::group)
        .def_rw("zero", &Format::zero)
        .def("set_table", &set_table, "bits"_a, "steps"_a, "keys"_a, "base"_a, "codes"_a, "values"_a, "by_code"_a,
             "nan"_a, "has_nan"_a, "infinity_is_nan"_a, "negative_is_nan"_a,
             nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
             nb::keep_alive<1, 8>(), "Use a table of values; the arrays are not copied, and live as long as the format.");

    nb::class_<Geometry>(m, "Geometry", "Where values lie, counted in values; native/jobs/job.hpp.")
        .def_ro("n", &Geometry::n);

    m.def("geometry", &geometry_of, "n"_a, "step"_a, "place_step"_a, "extent"_a, "stride"_a, "place_stride"_a,
          "Return a geometry: the line first, then the other axes, the outer before the inner.");
    m.def("fake_quantize", &fake_quantize, "format"_a, "geometry"_a, "x"_a.noconvert(), "out"_a.noconvert(), "threads"_a,
          "Round x into out, contiguous, which must not overlap; return (isa that ran, whether x held a NaN or an "
          "infinity).");
    m.def("quantize", &quantize, "format"_a, "geometry"_a, "x"_a.noconvert(), "codes"_a.noconvert(),
          "scales"_a.noconvert().none(), "shifts"_a.noconvert().none(), "outer"_a.noconvert().none(), "threads"_a,
          "Round x into packed parts; return as fake_quantize does.");
    m.def("dequantize", &dequantize, "format"_a, "geometry"_a, "codes"_a.noconvert(), "scales"_a.noconvert().none(),
          "shifts"_a.noconvert().none(), "outer"_a.noconvert().none(), "out"_a.noconvert(), "threads"_a,
          "Write the values of packed parts into out, contiguous.");
    m.def("gemv", &gemv_of, "format"_a, "x"_a.noconvert(), "narrow"_a, "permuted"_a.noconvert().none(), "codes"_a.noconvert(),
          "scales"_a.noconvert().none(), "shifts"_a.noconvert().none(), "outer"_a.noconvert().none(), "y"_a.noconvert(),
          "threads"_a, "Write x (batch, n) times the transpose of the packed (lines, n) into y (batch, lines).");
    m.def("has_bfloat16_products", &has_bfloat16_products, "Return whether this build and this CPU have them.");
    m.def("packed_sizes", [](std::int64_t m, std::int64_t n, std::int64_t k) {
        return std::pair(packed_a_size(m, k), packed_b_size(k, n));
    }, "m"_a, "n"_a, "k"_a, "Return the room that bfloat16_product needs for a and for b.");
    m.def("bfloat16_product", &bfloat16_product, "a"_a.noconvert(), "b"_a.noconvert(), "y"_a.noconvert(),
          "packed_a"_a.noconvert(), "packed_b"_a.noconvert(), "threads"_a,
          "Write a b into y, for matrices of float32 that are all bfloat16.");
    m.def("addition_product", &addition_product, "a"_a.noconvert(), "b"_a.noconvert(), "y"_a.noconvert(), "threads"_a,
          "Write a b into y, multiplied by sums of bit patterns.");
    m.def("magnitudes", &magnitudes, "geometry"_a, "x"_a.noconvert(), "threads"_a,
          "Return (largest finite magnitude, smallest magnitude above zero or infinity, whether x holds a NaN or an infinity).");
    bind_lattice(m);
    m.def("isa_names", &isa_names, "available"_a,
          "Names of the instruction sets in this build, preferred first; or only those that this CPU runs.");
    m.def("active_isa", [] { return std::string(active().name); }, "Name of the instruction set that runs.");
    m.def(
        "force_isa", [](const std::optional<std::string>& name) { force(name.value_or("")); }, "name"_a.none(),
        "Make one instruction set run, or give the choice back with None.");
    m.def("force_nontemporal", &force_nontemporal, "wanted"_a.none(),
          "Make every result go to memory past the caches, or none, or give the choice back with None.");
    bind_stencil(m);
    bind_residuals(m);
    bind_rows(m);
    bind_sparsity(m);
    bind_sparse_stream(m);
    m.def("enter_exact", &enter_exact, "Keep subnormals and round to nearest in this thread; return the state before.");
    m.def("leave_exact", &leave_exact, "saved"_a, "Give this thread the state that enter_exact returned.");
#ifdef FEWBITS_SANITIZE
    m.def("sanitizer_fault", &sanitizer_fault, "fault"_a, "Make a mistake that a sanitizer must report; native/sanitizer_faults.hpp.");
#endif
}
