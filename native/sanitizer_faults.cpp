// Deliberate mistakes, part of the sanitized build only: tests/native/test_sanitizers.py sees that each is reported.
#include "sanitizer_faults.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace fewbits {
namespace {

// What the compiler cannot see through, so that no mistake is computed away.
std::int32_t hidden(std::int32_t v) {
    volatile std::int32_t kept = v;
    return kept;
}

std::int32_t beyond_the_heap() {
    const std::unique_ptr<std::int32_t[]> four(new std::int32_t[4]());
    return four[static_cast<std::size_t>(hidden(4))];
}

std::int32_t beyond_the_bounds() {
    std::int32_t four[4] = {1, 2, 3, 4};
    return four[hidden(5)];
}

std::int32_t overflow() { return hidden(INT32_MAX) + hidden(1); }

std::int32_t shift() { return 1 << hidden(32); }

std::int32_t conversion() {
    volatile float beyond = 0x1p40f;
    return static_cast<std::int32_t>(beyond);
}

std::int32_t misaligned() {
    alignas(8) const unsigned char bytes[8] = {};
    return *reinterpret_cast<const std::int32_t*>(bytes + hidden(1));
}

}  // namespace

std::int32_t sanitizer_fault(const std::string& fault) {
    if (fault == "heap-buffer-overflow") return beyond_the_heap();
    if (fault == "out of bounds") return beyond_the_bounds();
    if (fault == "signed integer overflow") return overflow();
    if (fault == "shift exponent") return shift();
    if (fault == "outside the range") return conversion();
    if (fault == "misaligned address") return misaligned();
    throw std::invalid_argument("there is no such fault");
}

}  // namespace fewbits
