// Compiled with the flags that CMakeLists.txt gives this file; otherwise equal to its siblings.
#include "../ops/headers.hpp"

namespace fewbits::baseline {
#include "../ops/all.inc.hpp"
}  // namespace fewbits::baseline
