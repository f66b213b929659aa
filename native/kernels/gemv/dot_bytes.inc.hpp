// Sums of products of bytes by one instruction, where the CPU has it.
#pragma once

namespace dot_bytes {

#if defined(__AVX512F__)

// Adds the products of unsigned and signed bytes, four in a lane. Written as assembly because CPUs without the
// instruction run this file too: it is reached where the job says that this one has it.
inline __m512i add_byte_products(__m512i sum, __m512i a, __m512i b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

#elif defined(__AVX2__)

// As with AVX-512; AVX-VNNI is a feature of its own, in the encoding of AVX.
inline __m256i add_byte_products(__m256i sum, __m256i a, __m256i b) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

#endif

}  // namespace dot_bytes
