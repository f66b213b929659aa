// What bind.cpp adds to the module for lattices.
#pragma once

#include <nanobind/nanobind.h>

namespace fewbits {

void bind_lattice(nanobind::module_& m);

}  // namespace fewbits
