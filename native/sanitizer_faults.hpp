// The negative control of the sanitized build.
#pragma once

#include <cstdint>
#include <string>

namespace fewbits {

// Makes the mistake that a sanitizer reports in these words; returns where nothing watches.
std::int32_t sanitizer_fault(const std::string& fault);

}  // namespace fewbits
