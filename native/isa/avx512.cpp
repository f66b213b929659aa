// Compiled with the flags that CMakeLists.txt gives this file; otherwise equal to its siblings.
#include "kernels/headers.hpp"

namespace fewbits::avx512 {
#include "kernels/table.inc.hpp"
}  // namespace fewbits::avx512
