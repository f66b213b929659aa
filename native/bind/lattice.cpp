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
using Split = std::array<bool, 4>;
using Sum = std::array<double, 3>;

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
    std::int64_t groups = 1, with_halo = 1;

    Prepared(Pass pass, const Extent& extent, const Values& out, const std::optional<Norms>& norms, const Split& split = {}) {
        job.pass = pass;
        job.parity = -1;
        require(out.ndim() == 3 && (out.shape(1) == spinor_reals || out.shape(1) == colour_reals), "a field has 24 numbers for each site, or 6");
        job.reals = static_cast<std::int32_t>(out.shape(1));
        job.storage = storage_of(out);
        for (std::size_t i = 0; i < 4; ++i) {
            require(extent[i] >= 1 && extent[i] < 1 << 15, "the extent of a lattice in groups must be from 1 to 32767");
            job.extent[i] = extent[i];
            groups *= extent[i];
        }
        with_halo = groups;
        for (std::size_t i = 0; i < 4; ++i) {
            // Axes are T, Z, Y and X, directions x, y, z and t.
            job.below[3 - i] = split[i] ? with_halo : -1;
            job.above[3 - i] = split[i] ? with_halo + groups / extent[i] : -1;
            if (split[i]) with_halo += 2 * (groups / extent[i]);
        }
        job.out = field(out, norms);
    }

    void check_size(std::size_t size, std::int64_t each, const char* what, bool halo = false) const {
        const auto given = static_cast<std::int64_t>(size);
        require(given == with_halo * each * lattice_sites || (!halo && given == groups * each * lattice_sites), what);
    }

    // With `halo`, neighbours are read from it.
    Field field(const Values& values, const std::optional<Norms>& norms, bool halo = false) const {
        require(storage_of(values) == job.storage, "all fields must be of one type");
        require(values.ndim() == 3 && static_cast<std::int32_t>(values.shape(1)) == job.reals, "all fields must have as many numbers for each site");
        check_size(values.size(), job.reals, "a field needs 24 numbers for each site, or 6, and a halo where its neighbours are read", halo);
        const bool coded = coded_storage();
        require(coded == norms.has_value(), "integers have norms, floats have none");
        if (coded) check_size(norms->size(), 1, "a field needs one norm for each site", halo);
        return {.values = values.data(), .norms = coded ? norms->data() : nullptr};
    }

    bool coded_storage() const { return job.storage == FieldStorage::i16 || job.storage == FieldStorage::i8; }

    void multiply_by(const std::optional<Values>& values, const std::optional<Norms>& norms, bool on_result) {
        if (!values) return;
        require(job.reals == spinor_reals, "blocks are for fields of 24 numbers for each site");
        require(storage_of(*values) == job.storage, "blocks must be of the type of the fields");
        require(static_cast<std::int64_t>(values->size()) == groups * 2 * block_reals * lattice_sites, "two blocks of 36 numbers for each site");
        require(coded_storage() == norms.has_value(), "integers have norms, floats have none");
        require(!norms || static_cast<std::int64_t>(norms->size()) == groups * 2 * lattice_sites, "a block needs one norm");
        job.blocks = {.values = values->data(), .norms = norms ? norms->data() : nullptr, .on_result = on_result};
    }

    void visit(std::optional<int> parity) {
        require(!parity || *parity == 0 || *parity == 1, "a parity is 0 or 1");
        for (const std::int64_t size : job.extent) require(!parity || size % 2 == 0, "sites of one parity need an even number of groups along each axis");
        job.parity = parity.value_or(-1);
    }

    void accumulate(const Values& x, double alpha) {
        require(storage_of(x) == (job.storage == FieldStorage::f64 ? FieldStorage::f64 : FieldStorage::f32), "x must be float32, or float64 with float64");
        check_size(x.size(), job.reals, "x needs as many numbers for each site as the fields");
        job.x = x.data();
        job.alpha = alpha;
    }

    LatticeSums run(int threads) const {
        const Systems& systems = active().systems;
        nb::gil_scoped_release released;
        return pass(systems, job, threads);
    }
};

LatticeSums hop_lattice(Extent extent, Split split, Values links, std::optional<Values> blocks, std::optional<Norms> block_norms, bool on_result,
                        double diagonal, double hopping, bool chiral, std::optional<int> parity, Values in, std::optional<Norms> in_norms, Values own,
                        std::optional<Norms> own_norms, Values out, std::optional<Norms> out_norms, std::optional<double> alpha, int threads) {
    Prepared p(alpha ? Pass::update : Pass::hop, extent, out, out_norms, split);
    p.visit(parity);
    p.multiply_by(blocks, block_norms, on_result);
    p.job.in = p.field(in, in_norms, true);
    p.job.own = p.field(own, own_norms);
    p.job.hopping = hopping;
    p.job.chiral = chiral;
    require(in.data() != out.data(), "a field cannot become its own image");
    require(storage_of(links) == p.job.storage, "links must be of the type of the fields");
    const auto per_site = static_cast<std::int64_t>(links.size()) / (p.with_halo * 4 * lattice_sites);
    require(per_site == 18 || per_site == 12 || per_site == 8, "a link has 18, 12 or 8 numbers");
    p.check_size(links.size(), 4 * per_site, "four links for each site", true);
    p.job.numbers = static_cast<std::int32_t>(per_site);
    p.job.links = links.data();
    p.job.diagonal = diagonal;
    p.job.alpha = alpha.value_or(0.0);
    return p.run(threads);
}

Sum update_lattice_direction(Extent extent, Split split, Values r, std::optional<Norms> r_norms, Values p, std::optional<Norms> p_norms, Values x, double alpha,
            double gamma, double beta, std::optional<int> parity, int threads) {
    Prepared all(Pass::update_direction, extent, p, p_norms, split);
    all.job.in = all.field(r, r_norms);
    all.accumulate(x, alpha);
    all.job.gamma = gamma;
    all.job.beta = beta;
    all.visit(parity);
    return all.run(threads).first;
}

void update_lattice_solution(Extent extent, Split split, Values p, std::optional<Norms> p_norms, Values x, double alpha, int threads) {
    Prepared all(Pass::update_solution, extent, p, p_norms, split);
    all.accumulate(x, alpha);
    all.run(threads);
}

LatticeSums store_lattice_residual(Extent extent, Split split, Wide wide, Values r, std::optional<Norms> r_norms, Values p, std::optional<Norms> p_norms,
                               int threads) {
    Prepared all(Pass::store_residual, extent, r, r_norms, split);
    all.job.in = all.field(p, p_norms);
    require(static_cast<std::int64_t>(wide.size()) == all.groups * all.job.reals * lattice_sites, "wide needs as many numbers for each site as the fields");
    all.job.wide = wide.data();
    return all.run(threads);
}

}  // namespace

void fewbits::bind_lattice(nb::module_& m) {
    m.def("lattice_hop", &hop_lattice, "extent"_a, "split"_a, "links"_a.noconvert(), "blocks"_a.noconvert().none(), "block_norms"_a.noconvert().none(),
          "on_result"_a, "diagonal"_a, "hopping"_a, "chiral"_a, "parity"_a.none(), "field"_a.noconvert(),
          "field_norms"_a.noconvert().none(), "own"_a.noconvert(), "own_norms"_a.noconvert().none(),
          "out"_a.noconvert(), "out_norms"_a.noconvert().none(), "alpha"_a.none(), "threads"_a,
          "Write diagonal own - hopping neighbours of field into out, or with alpha subtract alpha times it; return (|out|^2, old out times new out), each as three numbers that add up to it.");
    m.def("lattice_update_direction", &update_lattice_direction, "extent"_a, "split"_a, "r"_a.noconvert(), "r_norms"_a.noconvert().none(), "p"_a.noconvert(),
          "p_norms"_a.noconvert().none(), "x"_a.noconvert(), "alpha"_a, "gamma"_a, "beta"_a, "parity"_a.none(), "threads"_a,
          "Add alpha p to x, then make p gamma r + beta p; return |p|^2 as three numbers.");
    m.def("lattice_update_solution", &update_lattice_solution, "extent"_a, "split"_a, "p"_a.noconvert(), "p_norms"_a.noconvert().none(), "x"_a.noconvert(), "alpha"_a,
          "threads"_a, "Add alpha p to x.");
    m.def("lattice_store_residual", &store_lattice_residual, "extent"_a, "split"_a, "wide"_a.noconvert(), "r"_a.noconvert(), "r_norms"_a.noconvert().none(), "p"_a.noconvert(),
          "p_norms"_a.noconvert().none(), "threads"_a, "Store wide, float64, in r; return (|r|^2, r times p), each as three numbers.");
}
