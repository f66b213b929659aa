// Arithmetic as IEEE 754 has it, whatever the thread was told before.
#pragma once

#ifdef FEWBITS_X86
#include <xmmintrin.h>
#endif

namespace fewbits {

// Another library may have told this thread to flush subnormals or to round otherwise; results must not depend on that.
// Returns the state that leave_exact brings back.
inline unsigned enter_exact() {
#ifdef FEWBITS_X86
    constexpr unsigned flush_to_zero = 0x8000, subnormals_are_zero = 0x0040, rounding = 0x6000;
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved & ~(flush_to_zero | subnormals_are_zero | rounding));
    return saved;
#else
    return 0;
#endif
}

inline void leave_exact([[maybe_unused]] unsigned saved) {
#ifdef FEWBITS_X86
    _mm_setcsr(saved);
#endif
}

// Exact arithmetic in a scope.
class ExactArithmetic {
  public:
    ExactArithmetic() : saved_(enter_exact()) {}
    ~ExactArithmetic() { leave_exact(saved_); }
    ExactArithmetic(const ExactArithmetic&) = delete;
    ExactArithmetic& operator=(const ExactArithmetic&) = delete;

  private:
    unsigned saved_;
};

}  // namespace fewbits
