// What Python sees of structured sparse lines: checks, unwraps and calls; no arithmetic.
#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "jobs/layout.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Lines = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutLines = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

NmLines lines_of(std::size_t lines, std::int64_t n, std::int32_t bits, std::int32_t keep, std::int32_t group,
                     std::uint32_t zero, std::uint32_t minus_zero) {
    require(bits >= 1 && bits <= 32, "bits must be from 1 to 32");
    require(keep >= 1 && keep < group && group <= 64, "a pattern keeps N of M with 1 <= N < M <= 64");
    require(n >= 0 && n % group == 0, "lines are whole groups");
    return {
        .lines = static_cast<std::int64_t>(lines),
        .n = n,
        .bits = bits,
        .keep = keep,
        .group = group,
        .zero = static_cast<std::int32_t>(zero),
        .minus_zero = static_cast<std::int32_t>(minus_zero),
        .in = nullptr,
        .out = nullptr,
    };
}

template <class Array>
void check_line(const Array& x, std::int64_t bytes, const char* what) {
    require(static_cast<std::int64_t>(x.shape(1)) == bytes, what);
}

std::int64_t compress_lines(Lines codes, std::int64_t n, std::int32_t bits, std::int32_t keep, std::int32_t group,
                            std::uint32_t zero, std::uint32_t minus_zero, OutLines stream, int threads) {
    NmLines job = lines_of(codes.shape(0), n, bits, keep, group, zero, minus_zero);
    require(stream.shape(0) == codes.shape(0), "as many streams as lines");
    check_line(codes, bytes_for(n, bits), "codes have the wrong size");
    check_line(stream, nm_stream_bytes(n, bits, keep, group), "the stream has the wrong size");
    job.in = codes.data();
    job.out = stream.data();
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    return transcode(implementation.kernels.compress, job, threads);
}

std::int64_t expand_lines(Lines stream, std::int64_t n, std::int32_t bits, std::int32_t keep, std::int32_t group,
                          std::uint32_t zero, std::optional<OutLines> codes, int threads) {
    NmLines job = lines_of(stream.shape(0), n, bits, keep, group, zero, zero);
    check_line(stream, nm_stream_bytes(n, bits, keep, group), "the stream has the wrong size");
    job.in = stream.data();
    if (codes.has_value()) {
        require(stream.shape(0) == codes->shape(0), "as many streams as lines");
        check_line(*codes, bytes_for(n, bits), "codes have the wrong size");
        job.out = codes->data();
    }
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    return transcode(implementation.kernels.expand, job, threads);
}

}  // namespace

void fewbits::bind_nm_stream(nb::module_& m) {
    m.def("compress_lines", &compress_lines, "codes"_a.noconvert(), "n"_a, "bits"_a, "keep"_a, "group"_a, "zero"_a, "minus_zero"_a,
          "stream"_a.noconvert(), "threads"_a,
          "Write the streams of packed codes; return the first line that keeps too many, or -1.");
    m.def("expand_lines", &expand_lines, "stream"_a.noconvert(), "n"_a, "bits"_a, "keep"_a, "group"_a, "zero"_a,
          "codes"_a.noconvert().none(), "threads"_a,
          "Write the packed codes of streams, or only check them; return the first line whose mask is wrong, or -1.");
}
