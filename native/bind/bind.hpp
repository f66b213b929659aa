// What the files that Python sees share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace fewbits {

inline void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

// Each adds the functions and classes of its file to the module.
void bind_conversion(nb::module_& m);
void bind_dense(nb::module_& m);
void bind_feedback(nb::module_& m);
void bind_format(nb::module_& m);
void bind_lattice(nb::module_& m);
void bind_machine(nb::module_& m);
void bind_nm_stream(nb::module_& m);
void bind_products(nb::module_& m);
void bind_sparse_rows(nb::module_& m);
void bind_sparsity(nb::module_& m);
void bind_stencil(nb::module_& m);
void bind_tally(nb::module_& m);
void bind_top_k(nb::module_& m);

}  // namespace fewbits
