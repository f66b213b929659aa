// How memory is cut into pages.
#pragma once

#include <cstddef>

namespace fewbits {

// Asks for huge pages where `bytes` bytes at `memory` have none yet: 1 GiB of new ones took 60 ms where the small ones that the
// system gives unasked took 400, and reading is up to twice as fast. Only a hint: nothing happens where the system has none.
void ask_for_huge_pages(void* memory, std::size_t bytes);

}  // namespace fewbits
