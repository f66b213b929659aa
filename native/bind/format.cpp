// Formats and geometries as Python fills them in.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind/arrays.hpp"

using namespace fewbits;

namespace {

template <class T>
using Line = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check(const Grid& g) {
    require(g.bits >= 1 && g.bits <= 32, "bits must be from 1 to 32");
    require(g.m >= 0 && g.m <= 23, "m must be from 0 to 23");
    require(g.emin >= -126 && g.emin <= 127, "emin must be from -126 to 127");
}

Geometry geometry_of(std::int64_t n, std::int64_t step, std::int64_t place_step, const std::vector<std::int64_t>& extent,
                     const std::vector<std::int64_t>& stride, const std::vector<std::int64_t>& place_stride) {
    require(extent.size() <= most_axes, "at most eight axes besides the line");
    require(stride.size() == extent.size() && place_stride.size() == extent.size(), "one stride for each axis");
    Geometry g{
        .n = n,
        .step = step,
        .place_step = place_step,
        .axes = static_cast<std::int32_t>(extent.size()),
        .extent = {},
        .stride = {},
        .place_stride = {},
    };
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
    f.table = {
        .bits = bits,
        .count = count,
        .steps = steps,
        .keys = keys.data(),
        .base = base.data(),
        .codes = codes.data(),
        .values = values.data(),
        .by_code = by_code.data(),
        .nan = nan,
        .has_nan = has_nan,
        .infinity_is_nan = infinity_is_nan,
        .negative_is_nan = negative_is_nan,
    };
}

}  // namespace

void fewbits::check(const Format& f) {
    if (f.tabled)
        require(f.table.count >= 2 && f.table.keys != nullptr, "a format of a table needs its table");
    else
        ::check(f.grid);
    require(f.rounding != Rounding::stochastic || f.random_bits == 16 || f.random_bits == 32, "random_bits must be 16 or 32");
    require(f.block >= 1 && f.sub_block >= 1, "block and sub_block must be at least 1");
    require(f.scale_bits >= 0 && f.scale_bits <= 32 && f.shift_bits >= 0 && f.shift_bits <= 4,
            "scales have at most 32 bits, shifts at most 4");
    require(f.scale_emin >= -127 && f.scale_emax <= 127 && f.scale_emin <= f.scale_emax,
            "scale exponents must be within -127 to 127");
    require(f.scales != Scales::shifted || f.sub_block <= 512, "values that share a shift must fit a tile of 512");
    require(f.keep == 0 || (f.keep >= 1 && f.keep < f.group && f.group <= 64), "a pattern keeps N of M with 1 <= N < M <= 64");
    require(f.largest_shift >= 0 && f.largest_shift <= 15, "largest_shift must be from 0 to 15");
    if (f.scales == Scales::real || f.scales == Scales::two_level) ::check(f.scale_grid);
}

void fewbits::bind_format(nb::module_& m) {
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

    nb::class_<Grid>(m, "Grid", "A float or fixed-point format as plain numbers; native/jobs/format.hpp.")
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
        .def_rw("rounds_by_addition", &Grid::rounds_by_addition);

    nb::class_<Format>(m, "Format", "A format and how to round to it, as plain numbers; native/jobs/format.hpp.")
        .def(nb::init<>())
        .def(nb::init<const Format&>(), nb::keep_alive<1, 2>())  // a copy reads the same table
        .def_rw("grid", &Format::grid)
        .def_rw("rounding", &Format::rounding)
        .def_rw("overflow", &Format::overflow)
        .def_rw("nonfinite", &Format::nonfinite)
        .def_rw("seed", &Format::seed)
        .def_rw("random_bits", &Format::random_bits)
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

    nb::class_<Geometry>(m, "Geometry", "Where values lie, counted in values; native/jobs/geometry.hpp.")
        .def_ro("n", &Geometry::n);

    m.def("geometry", &geometry_of, "n"_a, "step"_a, "place_step"_a, "extent"_a, "stride"_a, "place_stride"_a,
          "Return a geometry: the line first, then the other axes, the outer before the inner.");
}
