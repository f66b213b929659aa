// Compiled with the flags that CMakeLists.txt gives this file; otherwise equal to its siblings.
#include "kernels/headers.hpp"

namespace fewbits::avx512 {
namespace {
#include "kernels/table.inc.hpp"
}  // namespace

extern const Kernels kernels;
const Kernels kernels = table::functions;
}  // namespace fewbits::avx512
