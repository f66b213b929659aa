// Whether results go to memory past the caches.
#pragma once

#include <cstdint>
#include <optional>

namespace fewbits {

// Worth it for a result that no cache would keep, which need not be read before it is overwritten then. Measured: on
// AMD's Zen 4 a copy becomes 1.6 times as fast; on Intel's Emerald Rapids with one thread or two rounding 1.2 to 1.3 times
// and unpacking, which mostly writes, twice, packed codes as fast as before; on Cascade Lake a copy by two threads slower.
bool nontemporal(std::int64_t bytes);

// Makes every result go past the caches, or none, or gives the choice back.
void force_nontemporal(std::optional<bool> wanted);

}  // namespace fewbits
