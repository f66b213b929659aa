// Conversions between values and packed parts: checks, unwraps and calls; no arithmetic.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bind/arrays.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/nontemporal.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

void check_values(const Geometry& g, std::size_t count) {
    require(static_cast<std::int64_t>(count) == lines_in(g) * g.n, "the array has another number of values");
}

// Whether results go past the caches: by the size of the array that is rounded, also where its codes are smaller.
template <class Array>
bool past_caches(const Array& values) {
    return nontemporal(static_cast<std::int64_t>(values.size() * bytes_of(type_of(values))));
}

// Runs a job; returns the instruction set that its kernel says it was compiled for, and whether it met a NaN or an infinity.
std::pair<std::string, bool> run(const Quantize& job, int threads) {
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    const Outcome outcome = quantize(implementation.kernels, job, threads);
    return {outcome.isa == nullptr ? implementation.name : outcome.isa, outcome.nonfinite};
}

std::pair<std::string, bool> fake_quantize_values(const Format& format, const Geometry& geometry, ConstValues in, Values out,
                                                  int threads) {
    check(format);
    require(format.keep == 0, "only products read a sparse format");
    check_values(geometry, in.size());
    check_values(geometry, out.size());
    const Quantize job{
        .format = format,
        .geometry = geometry,
        .in = in.data(),
        .in_type = type_of(in),
        .values = out.data(),
        .values_type = type_of(out),
        .codes = nullptr,
        .scales = nullptr,
        .shifts = nullptr,
        .outer = nullptr,
        .nontemporal = past_caches(out),
    };
    return run(job, threads);
}

std::pair<std::string, bool> quantize_values(const Format& format, const Geometry& geometry, ConstValues in, Bytes codes,
                                             std::optional<Bytes> scales, std::optional<Bytes> shifts,
                                             std::optional<Floats> outer, int threads) {
    check(format);
    require(format.keep == 0, "only products read a sparse format");
    check_values(geometry, in.size());
    check_parts(format, geometry, codes, scales, shifts, outer);
    const Quantize job{
        .format = format,
        .geometry = geometry,
        .in = in.data(),
        .in_type = type_of(in),
        .values = nullptr,
        .values_type = Real::f32,
        .codes = codes.data(),
        .scales = data_of(scales),
        .shifts = data_of(shifts),
        .outer = data_of(outer),
        .nontemporal = past_caches(in),
    };
    return run(job, threads);
}

void dequantize_parts(const Format& format, const Geometry& geometry, ConstBytes codes, std::optional<ConstBytes> scales,
                      std::optional<ConstBytes> shifts, std::optional<ConstFloats> outer, Values out, bool add, int threads) {
    check(format);
    require(format.keep == 0, "only products read a sparse format");
    check_values(geometry, out.size());
    check_parts(format, geometry, codes, scales, shifts, outer);
    const Dequantize job{
        .format = format,
        .geometry = geometry,
        .codes = codes.data(),
        .scales = data_of(scales),
        .shifts = data_of(shifts),
        .outer = data_of(outer),
        .values = out.data(),
        .values_type = type_of(out),
        .combine = add ? Combine::add : Combine::replace,
        .nontemporal = !add && past_caches(out),
    };
    require(!add || (geometry.axes == 0 && geometry.place_step == 1 && job.values_type == Real::f32), "values are added to flat float32");
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    dequantize(implementation.kernels, job, threads);
}

std::tuple<double, double, bool> magnitudes(const Geometry& geometry, ConstValues in, int threads) {
    check_values(geometry, in.size());
    const Real type = type_of(in);
    const void* data = in.data();
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    const Magnitudes m = measure(implementation.kernels, data, type, geometry, threads);
    return {m.largest, m.smallest, m.nonfinite};
}

}  // namespace

void fewbits::bind_conversion(nb::module_& m) {
    m.def("fake_quantize", &fake_quantize_values, "format"_a, "geometry"_a, "x"_a.noconvert(), "out"_a.noconvert(), "threads"_a,
          "Round x into out, contiguous, which must not overlap; return (isa that ran, whether x held a NaN or an "
          "infinity).");
    m.def("quantize", &quantize_values, "format"_a, "geometry"_a, "x"_a.noconvert(), "codes"_a.noconvert(),
          "scales"_a.noconvert().none(), "shifts"_a.noconvert().none(), "outer"_a.noconvert().none(), "threads"_a,
          "Round x into packed parts; return as fake_quantize does.");
    m.def("dequantize", &dequantize_parts, "format"_a, "geometry"_a, "codes"_a.noconvert(), "scales"_a.noconvert().none(),
          "shifts"_a.noconvert().none(), "outer"_a.noconvert().none(), "out"_a.noconvert(), "add"_a, "threads"_a,
          "Write the values of packed parts into out, contiguous, or add them to it.");
    m.def("magnitudes", &magnitudes, "geometry"_a, "x"_a.noconvert(), "threads"_a,
          "Return (largest finite magnitude, smallest magnitude above zero or infinity, whether x holds a NaN or an infinity).");
}
