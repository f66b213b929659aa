// Compiled with the flags that CMakeLists.txt gives this file; otherwise equal to its siblings.
#include "../fake_quantize.hpp"

namespace fewbits::avx512 {
#include "../ops/fake_quantize.inc.hpp"
}  // namespace fewbits::avx512
