// What Python sees of the stencil's kernels: checks, unwraps and calls; no arithmetic.
#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Numbers = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Norms = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;

std::size_t bytes_of(Storage storage) { return storage == Storage::f64 ? 8 : storage == Storage::f32 ? 4 : 2; }

// Stored numbers and how many there are.
struct StoredNumbers {
    Stored stored;
    std::int64_t count;
};

void make_stored_numbers(StoredNumbers* self, Storage storage, Numbers values, std::optional<Norms> norms, double scale) {
    require(values.itemsize() == bytes_of(storage), "values have another size than their storage says");
    const auto count = static_cast<std::int64_t>(values.size());
    require(count % site == 0, "rows are multiples of 32 numbers");
    require((storage == Storage::i16) == norms.has_value(), "16-bit integers, and they alone, have norms");
    require(!norms || static_cast<std::int64_t>(norms->size()) == count / site, "one norm for 32 numbers");
    const Stored stored{
        .storage = storage,
        .values = values.data(),
        .norms = norms ? norms->data() : nullptr,
        .scale = scale,
    };
    new (self) StoredNumbers{.stored = stored, .count = count};
}

void make_stencil(Stencil* self, std::int64_t nx, std::int64_t ny, std::int64_t nz, const StoredNumbers& x, const StoredNumbers& y, const StoredNumbers& z,
                  Doubles high, double shift) {
    require(nx >= 1 && ny >= 1 && nz >= 1 && x.count % (ny * nz) == 0, "faces in x: (nz, ny, stride)");
    const std::int64_t stride = x.count / (ny * nz);
    require(stride % site == 0 && nx <= stride && stride <= 4096, "rows are multiples of 32 numbers, at most 4096");
    require(y.count == nz * (ny + 1) * stride && z.count == (nz + 1) * ny * stride, "faces in y and z: one row and one plane more");
    require(static_cast<std::int64_t>(high.size()) == ny * nz, "high: (nz, ny)");
    require(y.stored.storage == x.stored.storage && z.stored.storage == x.stored.storage, "faces are stored alike");
    new (self) Stencil{
        .nx = nx,
        .ny = ny,
        .nz = nz,
        .stride = stride,
        .x = x.stored,
        .y = y.stored,
        .z = z.stored,
        .high = high.data(),
        .shift = shift,
    };
}

void update_direction_of(const Stencil& a, const StoredNumbers& r, const StoredNumbers& p, const StoredNumbers& next, const StoredNumbers& q, std::optional<Numbers> x, double alpha,
                  double earlier, double gamma, double beta, Numbers workspace, Sums sums, int threads) {
    const std::int64_t count = a.ny * a.nz * a.stride;
    for (const StoredNumbers* vector : {&r, &p, &next, &q}) {
        require(vector->count == count, "vectors: (nz, ny, stride)");
        require(vector->stored.storage == r.stored.storage, "vectors are stored alike");
    }
    require(p.stored.values != next.stored.values, "the new direction needs workspace of its own");
    require(serves(r.stored.storage, a.x.storage), "no kernel for this pair of storages");
    require(!x || static_cast<std::int64_t>(x->size()) == count, "x: (nz, ny, stride)");
    require(!x || x->itemsize() == (r.stored.storage == Storage::f64 ? 8u : 4u), "x is float64 with float64 vectors, else float32");
    require(static_cast<std::int64_t>(sums.size()) >= 3 * direction_items(a), "three sums for each item");
    const DirectionUpdate job{
        .a = a,
        .r = r.stored,
        .p = p.stored,
        .next = next.stored,
        .q = q.stored,
        .x = x ? x->data() : nullptr,
        .alpha = alpha,
        .earlier = earlier,
        .gamma = gamma,
        .beta = beta,
        .sums = sums.data(),
    };
    const Implementation& implementation = active();
    const auto bytes = static_cast<std::int64_t>(workspace.size() * workspace.itemsize());
    require(threads >= 1 && bytes >= threads * implementation.systems.direction_workspace(job), "workspace for each thread");
    nb::gil_scoped_release released;
    update_direction(implementation.systems, job, workspace.data(), threads);
}

void update_residual_of(const Stencil& a, const StoredNumbers& r, const StoredNumbers& q, double r_scale, double alpha, Sums sums, int threads) {
    const std::int64_t rows = a.ny * a.nz;
    require(r.count == rows * a.stride && q.count == r.count, "vectors: (nz, ny, stride)");
    require(r.stored.storage == q.stored.storage, "vectors are stored alike");
    require(static_cast<std::int64_t>(sums.size()) >= 2 * residual_items(rows), "two sums for each item");
    const ResidualUpdate job{
        .stride = a.stride,
        .rows = rows,
        .r = r.stored,
        .q = q.stored,
        .r_scale = r_scale,
        .alpha = alpha,
        .sums = sums.data(),
    };
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    update_residual(implementation.systems, job, threads);
}

void pack_stencil(const Stencil& a, Doubles from, const StoredNumbers& to, const StoredNumbers& p, Sums sums, int threads) {
    const std::int64_t rows = a.ny * a.nz;
    require(static_cast<std::int64_t>(from.size()) == rows * a.nx, "from: (nz, ny, nx)");
    require(to.count == rows * a.stride && p.count == to.count, "vectors: (nz, ny, stride)");
    require(to.stored.storage == p.stored.storage, "vectors are stored alike");
    require(static_cast<std::int64_t>(sums.size()) >= 2 * residual_items(rows), "two sums for each item");
    const Pack job{
        .from = from.data(),
        .nx = a.nx,
        .stride = a.stride,
        .rows = rows,
        .to = to.stored,
        .p = p.stored,
        .sums = sums.data(),
    };
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    pack(implementation.systems, job, threads);
}

}  // namespace

void fewbits::bind_stencil(nb::module_& m) {
    nb::enum_<Storage>(m, "Storage")
        .value("f64", Storage::f64)
        .value("f32", Storage::f32)
        .value("f16", Storage::f16)
        .value("i16", Storage::i16);
    nb::class_<StoredNumbers>(m, "StoredNumbers", "Numbers as they are stored; the arrays are not copied. native/jobs/stencil.hpp.")
        .def("__init__", &make_stored_numbers, "storage"_a, "values"_a.noconvert(), "norms"_a.noconvert().none(), "scale"_a,
             nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def_prop_rw("scale", [](const StoredNumbers& h) { return h.stored.scale; }, [](StoredNumbers& h, double scale) { h.stored.scale = scale; });
    nb::class_<Stencil>(m, "Stencil", "A 7-point stencil; native/jobs/stencil.hpp.")
        .def("__init__", &make_stencil, "nx"_a, "ny"_a, "nz"_a, "x"_a, "y"_a, "z"_a, "high"_a.noconvert(), "shift"_a,
             nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>())
        .def_prop_ro("direction_items", [](const Stencil& a) { return direction_items(a); })
        .def_prop_ro("residual_items", [](const Stencil& a) { return residual_items(a.ny * a.nz); })
        .def_prop_ro("workspace", [](const Stencil& a) {  // bytes for each thread with vectors of float64
            DirectionUpdate job{};
            job.a = a;
            job.r.storage = Storage::f64;
            return active().systems.direction_workspace(job);
        });
    m.def("serves", &serves, "vectors"_a, "faces"_a, "Return whether there are kernels for vectors and faces that are stored so.");
    m.def("update_direction", &update_direction_of, "a"_a, "r"_a, "p"_a, "next"_a, "q"_a, "x"_a.noconvert().none(), "alpha"_a, "earlier"_a, "gamma"_a, "beta"_a,
          "workspace"_a.noconvert(), "sums"_a.noconvert(), "threads"_a,
          "x += alpha p, next = gamma r + beta p, q = A next; sums of next.q, next.next and q.q for each item.");
    m.def("update_residual", &update_residual_of, "a"_a, "r"_a, "q"_a, "r_scale"_a, "alpha"_a, "sums"_a.noconvert(), "threads"_a,
          "r -= alpha q; sums of r.r and of r with what it was, for each item. The caller sets r's new scale.");
    m.def("pack_stencil", &pack_stencil, "a"_a, "values"_a.noconvert(), "to"_a, "p"_a, "sums"_a.noconvert(), "threads"_a,
          "Store values (nz, ny, nx); sums of to.to and to.p for each item.");
}
