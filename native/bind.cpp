// What Python sees: checks, unwraps and calls; no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dispatch.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fewbits;

namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// The ranges that the kernels rely on; the Python side has messages for people, these guard memory and arithmetic.
void check(const FakeQuantize& p) {
    const auto require = [](bool holds, const char* what) {
        if (!holds) throw nb::value_error(what);
    };
    require(p.block >= 1 && p.sub_block >= 1, "block and sub_block must be at least 1");
    require(p.mantissa_bits >= 0 && p.mantissa_bits <= 22, "mantissa_bits must be from 0 to 22");
    require(p.emin >= -126 && p.emin <= 100, "emin must be from -126 to 100");
    require(p.kind == Kind::scalar || p.emax <= 100, "emax of an element in blocks must be at most 100");
    require(p.kind == Kind::scalar || p.emin - p.mantissa_bits >= -100,
            "the smallest step of an element in blocks must be at least 2^-100");
    require(p.scale_emin >= -127 && p.scale_emax <= 127 && p.scale_emin <= p.scale_emax,
            "scale exponents must be within -127 to 127");
    require(p.largest_shift >= 0 && p.largest_shift <= 15, "largest_shift must be from 0 to 15");
    require(p.max > 0 && p.min >= 0, "max must be above zero and min, a magnitude, not below");
}

std::pair<std::string, bool> fake_quantize(ConstMatrix in, Matrix out, FakeQuantize p, int threads) {
    if (in.shape(0) != out.shape(0) || in.shape(1) != out.shape(1)) throw nb::value_error("in and out differ in shape");
    p.rows = static_cast<std::int64_t>(in.shape(0));
    p.cols = static_cast<std::int64_t>(in.shape(1));
    check(p);
    const Implementation& one = active();
    if (p.rows == 0 || p.cols == 0) return {one.name, false};
    nb::gil_scoped_release released;
    const Outcome outcome = run(one.fake_quantize, p, in.data(), out.data(), threads);
    return {outcome.isa, outcome.nonfinite};
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

    nb::enum_<Kind>(m, "Kind")
        .value("scalar", Kind::scalar)
        .value("block", Kind::block)
        .value("bdr", Kind::bdr);
    nb::enum_<ScaleRule>(m, "ScaleRule")
        .value("floor", ScaleRule::floor)
        .value("ceil", ScaleRule::ceil)
        .value("rceil", ScaleRule::rceil)
        .value("even", ScaleRule::even)
        .value("one_seventy_five", ScaleRule::one_seventy_five)
        .value("midmax", ScaleRule::midmax)
        .value("oas", ScaleRule::oas)
        .value("double_floor", ScaleRule::double_floor);

    nb::class_<FakeQuantize>(m, "FakeQuantize", "One fake quantization as plain numbers; native/fake_quantize.hpp.")
        .def(nb::init<>())
        .def_rw("kind", &FakeQuantize::kind)
        .def_rw("block", &FakeQuantize::block)
        .def_rw("sub_block", &FakeQuantize::sub_block)
        .def_rw("mantissa_bits", &FakeQuantize::mantissa_bits)
        .def_rw("emin", &FakeQuantize::emin)
        .def_rw("emax", &FakeQuantize::emax)
        .def_rw("max", &FakeQuantize::max)
        .def_rw("min", &FakeQuantize::min)
        .def_rw("signed_zero", &FakeQuantize::signed_zero)
        .def_rw("saturate", &FakeQuantize::saturate)
        .def_rw("overflow", &FakeQuantize::overflow)
        .def_rw("scale_rule", &FakeQuantize::scale_rule)
        .def_rw("oas_factor", &FakeQuantize::oas_factor)
        .def_rw("scale_emin", &FakeQuantize::scale_emin)
        .def_rw("scale_emax", &FakeQuantize::scale_emax)
        .def_rw("largest_shift", &FakeQuantize::largest_shift);

    m.def("fake_quantize", &fake_quantize, "x"_a.noconvert(), "out"_a.noconvert(), "params"_a, "threads"_a,
          "Quantize the rows of x into out, which must not overlap; return (isa that ran, whether x held a NaN or an "
          "infinity).");
    m.def("isa_names", &isa_names, "available"_a,
          "Names of the instruction sets in this build, preferred first; or only those that this CPU runs.");
    m.def("active_isa", [] { return std::string(active().name); }, "Name of the instruction set that runs.");
    m.def(
        "force_isa", [](const std::optional<std::string>& name) { force(name.value_or("")); }, "name"_a.none(),
        "Make one instruction set run, or give the choice back with None.");
    m.attr("has_threads") = has_threads();
}
