#include "dispatch/nontemporal.hpp"

#include <atomic>

namespace fewbits {
namespace {

enum class Choice { none, never, always };
std::atomic<Choice> forced{Choice::none};

constexpr std::int64_t least_bytes = std::int64_t{64} << 20;

bool gains() {
#ifdef FEWBITS_X86
    // VBMI2 tells Intel's Ice Lake and what came after it from Cascade Lake.
    return __builtin_cpu_is("amd") || __builtin_cpu_supports("avx512vbmi2");
#else
    return false;
#endif
}

}  // namespace

bool nontemporal(std::int64_t bytes) {
    const Choice choice = forced;
    return choice == Choice::none ? bytes >= least_bytes && gains() : choice == Choice::always;
}

void force_nontemporal(std::optional<bool> wanted) {
    forced = !wanted ? Choice::none : *wanted ? Choice::always : Choice::never;
}

}  // namespace fewbits
