// Waiting that keeps the core.
#pragma once

namespace fewbits {

// Waiting threads look this often before they do anything else: some 50 microseconds, in which a solver's next pass begins.
constexpr int looks = 2000;

inline void relax() {
#ifdef FEWBITS_X86
    __builtin_ia32_pause();
#endif
}

}  // namespace fewbits
