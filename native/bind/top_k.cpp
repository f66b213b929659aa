// What Python sees of the search for the largest magnitudes: checks, unwraps and calls.
#include "bind/arrays.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

using Flat = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<std::int64_t, nb::c_contig, nb::device::cpu>;

void top_k_places(Lent<Flat> x, Places places, int threads) {
    const TopK job{
        .in = x.data(),
        .type = type_of(x),
        .n = static_cast<std::int64_t>(x.size()),
        .k = static_cast<std::int64_t>(places.size()),
    };
    require(job.n <= most_ranked && job.k <= job.n && threads >= 1, "k of at most 2^31 - 1 values");
    check_aligned(places, sizeof(std::int64_t));
    if (job.k == 0) return;
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    top_k(implementation.kernels, job, places.data(), threads);
}

}  // namespace

void fewbits::bind_top_k(nb::module_& m) {
    m.def("top_k", &top_k_places, "x"_a.noconvert(), "places"_a.noconvert(), "threads"_a,
          "Write the places of the largest magnitudes of x, as many as `places` holds, in rising order.");
}
