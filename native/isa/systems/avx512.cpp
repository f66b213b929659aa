// Compiled with the flags that CMakeLists.txt gives this file; otherwise equal to its siblings.
#include "kernels/headers.hpp"

namespace fewbits::avx512 {
namespace {
#include "kernels/solver_table.inc.hpp"
}  // namespace

extern const Systems systems;
const Systems systems = solver_table::functions;
}  // namespace fewbits::avx512
