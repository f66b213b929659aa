// The module that Python imports: what each file of this folder adds to it.
#include "bind/bind.hpp"
#ifdef FEWBITS_SANITIZE
#include <nanobind/stl/string.h>

#include "sanitizer_faults.hpp"
#endif

using namespace fewbits;

NB_MODULE(_native, m) {
    m.doc() = "Compiled kernels of fewbits; fewbits.kernels.native is their public side.";
    bind_format(m);
    bind_conversion(m);
    bind_feedback(m);
    bind_products(m);
    bind_lattice(m);
    bind_machine(m);
    bind_stencil(m);
    bind_dense(m);
    bind_sparse_rows(m);
    bind_sparsity(m);
    bind_nm_stream(m);
    bind_tally(m);
    bind_top_k(m);
#ifdef FEWBITS_SANITIZE
    m.def("sanitizer_fault", &sanitizer_fault, "fault"_a, "Make a mistake that a sanitizer must report; native/sanitizer_faults.hpp.");
#endif
}
