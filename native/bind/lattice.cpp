// The passes over a lattice as Python sees them: checks, unwraps and calls; no arithmetic.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <array>
#include <optional>
#include <utility>

#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Values = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Norms = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Wide = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
using Extent = std::array<std::int64_t, 4>;

FieldStorage storage_of(const Values& v) {
    const nb::dlpack::dtype t = v.dtype();
    const bool integers = t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int);
    require(t.lanes == 1, "values must be plain numbers");
    if (!integers && t.bits == 64) return FieldStorage::f64;
    if (!integers && t.bits == 32) return FieldStorage::f32;
    require(integers && (t.bits == 16 || t.bits == 8), "values must be float64, float32, int16 or int8");
    return t.bits == 16 ? FieldStorage::i16 : FieldStorage::i8;
}

// A job on `out` that its pass completes.
struct Prepared {
    Lattice job{};
    std::int64_t groups = 1;

    Prepared(Pass pass, const Extent& extent, const Values& out, const std::optional<Norms>& norms) {
        job.pass = pass;
        job.parity = -1;
        job.storage = storage_of(out);
        for (std::size_t i = 0; i < 4; ++i) {
            require(extent[i] >= 1 && extent[i] < 1 << 15, "the extent of a lattice in groups must be from 1 to 32767");
            job.extent[i] = extent[i];
            groups *= extent[i];
        }
        job.out = field(out, norms);
    }

    void check_size(std::size_t size, std::int64_t each, const char* what) const {
        require(static_cast<std::int64_t>(size) == groups * each * lattice_sites, what);
    }

    Field field(const Values& values, const std::optional<Norms>& norms) const {
        require(storage_of(values) == job.storage, "all fields must be of one type");
        check_size(values.size(), spinor_reals, "a field needs 24 numbers for each site");
        const bool coded = job.storage == FieldStorage::i16 || job.storage == FieldStorage::i8;
        require(coded == norms.has_value(), "integers have norms, floats have none");
        if (coded) check_size(norms->size(), 1, "a field needs one norm for each site");
        return {.values = values.data(), .norms = coded ? norms->data() : nullptr};
    }

    void visit(std::optional<int> parity) {
        require(!parity || *parity == 0 || *parity == 1, "a parity is 0 or 1");
        for (const std::int64_t size : job.extent) require(!parity || size % 2 == 0, "sites of one parity need an even number of groups along each axis");
        job.parity = parity.value_or(-1);
    }

    void accumulate(const Values& x, double alpha) {
        require(storage_of(x) == (job.storage == FieldStorage::f64 ? FieldStorage::f64 : FieldStorage::f32), "x must be float32, or float64 with float64");
        check_size(x.size(), spinor_reals, "x needs 24 numbers for each site");
        job.x = x.data();
        job.alpha = alpha;
    }

    std::pair<double, double> run(int threads) const {
        const Kernels& kernels = active().kernels;
        nb::gil_scoped_release released;
        return pass(kernels, job, threads);
    }
};

std::pair<double, double> hop_lattice(Extent extent, Values links, double diagonal, double hopping, bool chiral, std::optional<int> parity, Values in,
                              std::optional<Norms> in_norms, Values own, std::optional<Norms> own_norms, Values out,
                              std::optional<Norms> out_norms, std::optional<double> alpha, int threads) {
    Prepared p(alpha ? Pass::update : Pass::hop, extent, out, out_norms);
    p.visit(parity);
    p.job.in = p.field(in, in_norms);
    p.job.own = p.field(own, own_norms);
    p.job.hopping = hopping;
    p.job.chiral = chiral;
    require(in.data() != out.data(), "a field cannot become its own image");
    require(storage_of(links) == p.job.storage, "links must be of the type of the fields");
    const auto per_site = static_cast<std::int64_t>(links.size()) / (p.groups * 4 * lattice_sites);
    require(per_site == 18 || per_site == 12 || per_site == 8, "a link has 18, 12 or 8 numbers");
    p.check_size(links.size(), 4 * per_site, "four links for each site");
    p.job.numbers = static_cast<std::int32_t>(per_site);
    p.job.links = links.data();
    p.job.diagonal = diagonal;
    p.job.alpha = alpha.value_or(0.0);
    return p.run(threads);
}

double update_lattice_direction(Extent extent, Values r, std::optional<Norms> r_norms, Values p, std::optional<Norms> p_norms, Values x, double alpha,
            double gamma, double beta, std::optional<int> parity, int threads) {
    Prepared all(Pass::update_direction, extent, p, p_norms);
    all.job.in = all.field(r, r_norms);
    all.accumulate(x, alpha);
    all.job.gamma = gamma;
    all.job.beta = beta;
    all.visit(parity);
    return all.run(threads).first;
}

void update_lattice_solution(Extent extent, Values p, std::optional<Norms> p_norms, Values x, double alpha, int threads) {
    Prepared all(Pass::update_solution, extent, p, p_norms);
    all.accumulate(x, alpha);
    all.run(threads);
}

std::pair<double, double> store_lattice_residual(Extent extent, Wide wide, Values r, std::optional<Norms> r_norms, Values p, std::optional<Norms> p_norms,
                               int threads) {
    Prepared all(Pass::store_residual, extent, r, r_norms);
    all.job.in = all.field(p, p_norms);
    all.check_size(wide.size(), spinor_reals, "a field needs 24 numbers for each site");
    all.job.wide = wide.data();
    return all.run(threads);
}

}  // namespace

void fewbits::bind_lattice(nb::module_& m) {
    m.def("lattice_hop", &hop_lattice, "extent"_a, "links"_a.noconvert(), "diagonal"_a, "hopping"_a, "chiral"_a, "parity"_a.none(), "field"_a.noconvert(),
          "field_norms"_a.noconvert().none(), "own"_a.noconvert(), "own_norms"_a.noconvert().none(),
          "out"_a.noconvert(), "out_norms"_a.noconvert().none(), "alpha"_a.none(), "threads"_a,
          "Write diagonal own - hopping neighbours of field into out, or with alpha subtract alpha times it; return (|out|^2, old out times new out).");
    m.def("lattice_update_direction", &update_lattice_direction, "extent"_a, "r"_a.noconvert(), "r_norms"_a.noconvert().none(), "p"_a.noconvert(),
          "p_norms"_a.noconvert().none(), "x"_a.noconvert(), "alpha"_a, "gamma"_a, "beta"_a, "parity"_a.none(), "threads"_a,
          "Add alpha p to x, then make p gamma r + beta p; return |p|^2.");
    m.def("lattice_update_solution", &update_lattice_solution, "extent"_a, "p"_a.noconvert(), "p_norms"_a.noconvert().none(), "x"_a.noconvert(), "alpha"_a,
          "threads"_a, "Add alpha p to x.");
    m.def("lattice_store_residual", &store_lattice_residual, "extent"_a, "wide"_a.noconvert(), "r"_a.noconvert(), "r_norms"_a.noconvert().none(), "p"_a.noconvert(),
          "p_norms"_a.noconvert().none(), "threads"_a, "Store wide, float64, in r; return (|r|^2, r times p).");
}
