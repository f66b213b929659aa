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

void bind_lattice(nb::module_& m);
void bind_residuals(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_sparse_stream(nb::module_& m);
void bind_sparsity(nb::module_& m);
void bind_stencil(nb::module_& m);

}  // namespace fewbits
