// What Python sees of the errors of rounding: checks, unwraps and calls.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "bind/arrays.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Rows = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;  // values one after the other, of either width
using ConstDoubles = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
// The fields of ErrorSums in order, with those of fewbits.kernels.bits.error_sums first.
using Told = std::tuple<double, double, double, double, std::int64_t, std::int64_t, std::int64_t, bool>;

Told told(const ErrorSums& s) {
    return {s.signal, s.noise, s.relative, s.largest_relative, s.nonzero, s.flushed, s.saturated, s.nonfinite};
}

void check(const TallyItems& t, std::size_t size) {
    require(t.n >= 1 && t.lines >= 0 && static_cast<std::int64_t>(size) == t.lines * t.n, "the array must be whole lines");
    require(t.part >= tally_lanes && t.part % tally_lanes == 0 && t.part <= most_tallied_together,
            "parts are whole lanes, and not longer than what is tallied at once");
}

Told tally_values(const Format& format, Lent<Rows> in, std::int64_t n, std::int64_t part, double element_max, bool scale_of_line,
                  int threads) {
    check(format);
    require(format.keep == 0, "only products read a sparse format");
    require(format.rounding != Rounding::stochastic, "a draw needs the place of its value");
    const TallyItems items{.lines = static_cast<std::int64_t>(in.size()) / (n < 1 ? 1 : n), .n = n, .part = part};
    check(items, in.size());
    const bool blocks = has_blocks(format) && !(scale_of_line && format.scales != Scales::two_level);
    require(!blocks || part % format.block == 0, "parts are whole blocks");
    require(blocks || format.scales != Scales::shifted, "shifts need blocks that fit a part");
    require(scale_of_line || format.scales != Scales::two_level || format.whole_known, "the outer scale must be known");
    const Tally job{
        .format = format,
        .in = in.data(),
        .in_type = type_of(in),
        .items = items,
        .element_max = element_max,
        .largest = nullptr,
        .sums = nullptr,
    };
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    return told(tally(implementation.kernels, job, scale_of_line, threads));
}

Told tally_pairs(Rows x, Rows y, ConstDoubles limit, std::int64_t part, int threads) {
    const nb::dlpack::dtype t = x.dtype();
    require(t == y.dtype() && t.lanes == 1 && (t == nb::dtype<float>() || t == nb::dtype<double>()), "values must be float32 or float64, twice");
    require(x.size() == y.size() && (limit.size() == 1 || limit.size() == x.size()), "as many rounded values and limits as values");
    if (x.size() == 0) return told({});
    const TallyItems items{.lines = 1, .n = static_cast<std::int64_t>(x.size()), .part = part};
    check(items, x.size());
    for (const Rows* values : {&x, &y}) check_aligned(*values, t.bits / 8);
    check_aligned(limit, sizeof(double));
    const PairTally job{
        .x = x.data(),
        .y = y.data(),
        .wide = t.bits == 64,
        .limit = limit.data(),
        .one_limit = limit.size() == 1,
        .items = items,
        .sums = nullptr,
    };
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    return told(tally(implementation.kernels, job, threads));
}

}  // namespace

void fewbits::bind_tally(nb::module_& m) {
    m.def("tally", &tally_values, "format"_a, "x"_a.noconvert(), "n"_a, "part"_a, "element_max"_a, "scale_of_line"_a, "threads"_a,
          "Round the lines of n values and return (signal, noise, relative, largest relative, nonzero, flushed, saturated, "
          "whether x holds a NaN or an infinity).");
    m.def("tally_pairs", &tally_pairs, "x"_a.noconvert(), "y"_a.noconvert(), "limit"_a.noconvert(), "part"_a, "threads"_a,
          "The same of values that became y.");
}
