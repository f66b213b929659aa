// What Python sees of error feedback: checks, unwraps and calls.
#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/arrays.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Flat = Lent<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;

bool quantize_with_feedback(const Format& format, const Format& reading, const Geometry& geometry, std::optional<Flat> x,
                            Floats residual, Bytes codes, std::optional<Bytes> scales, std::optional<Bytes> shifts,
                            std::optional<Floats> outer, int threads) {
    check(format);
    check(reading);
    require(format.keep == 0 && reading.keep == 0, "only products read a sparse format");
    require(geometry.axes == 0 && geometry.step == 1 && geometry.place_step == 1 && geometry.n >= 1, "one line of values");
    require(static_cast<std::int64_t>(residual.size()) == geometry.n, "the residual has another number of values");
    require(!x.has_value() || x->size() == residual.size(), "as many values as residuals");
    check_aligned(residual, sizeof(float));
    for (const Format* f : {&format, &reading}) check_parts(*f, geometry, codes, scales, shifts, outer);
    const Feedback job{
        .quantize =
            {
                .format = format,
                .geometry = geometry,
                .in = residual.data(),
                .in_type = Real::f32,
                .values = nullptr,
                .values_type = Real::f32,
                .codes = codes.data(),
                .scales = data_of(scales),
                .shifts = data_of(shifts),
                .outer = data_of(outer),
                .nontemporal = false,
            },
        .dequantize =
            {
                .format = reading,
                .geometry = geometry,
                .codes = codes.data(),
                .scales = data_of(scales),
                .shifts = data_of(shifts),
                .outer = data_of(outer),
                .values = residual.data(),
                .values_type = Real::f32,
                .combine = Combine::subtract,
                .nontemporal = false,
            },
        .x = x.has_value() ? x->data() : nullptr,
        .x_type = x.has_value() ? type_of(*x) : Real::f32,
        .residual = residual.data(),
    };
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    return feedback(implementation.kernels, job, threads);
}

}  // namespace

void fewbits::bind_feedback(nb::module_& m) {
    m.def("quantize_with_feedback", &quantize_with_feedback, "format"_a, "reading"_a, "geometry"_a, "x"_a.noconvert().none(),
          "residual"_a.noconvert(), "codes"_a.noconvert(), "scales"_a.noconvert().none(), "shifts"_a.noconvert().none(),
          "outer"_a.noconvert().none(), "threads"_a,
          "Add x to residual, round the sums into packed parts, and subtract what these hold; return whether a sum is no "
          "number or infinite.");
}
