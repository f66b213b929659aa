// Memory that a call works in, kept from call to call: new pages cost more than the work that goes through them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fewbits {

// At least `bytes` bytes at a multiple of 64, with no values in them. A few such memories, 768 MiB at most, wait in
// the process for their next user; who finds none that is large enough gets a new one.
class Scratch {
  public:
    explicit Scratch(std::size_t bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    std::uint8_t* data() const { return data_; }

  private:
    std::uint8_t* data_;
    std::size_t size_;
};

}  // namespace fewbits
