#include "dispatch/scratch.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fewbits {
namespace {

constexpr std::size_t page = std::size_t{2} << 20;    // a huge one, where the system gives them to those who ask
constexpr std::size_t most_kept = std::size_t{256} << 20;  // more goes back to the system

// Its first bytes say how large it is, while it waits. No lock: a forked child may have it too.
struct Waiting {
    std::size_t size;
};
std::atomic<Waiting*> waiting{nullptr};

}  // namespace

Scratch::Scratch(std::size_t bytes) {
    if (Waiting* kept = waiting.exchange(nullptr)) {
        data_ = reinterpret_cast<std::uint8_t*>(kept);
        size_ = kept->size;
        if (size_ >= bytes) return;
        std::free(kept);
    }
    size_ = (bytes / page + 1) * page;
    data_ = static_cast<std::uint8_t*>(std::aligned_alloc(page, size_));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    madvise(data_, size_, MADV_HUGEPAGE);  // a hint: without it the pages are small
#endif
}

Scratch::~Scratch() {
    if (size_ > most_kept) {
        std::free(data_);
        return;
    }
    Waiting* mine = new (data_) Waiting{size_};
    std::free(waiting.exchange(mine));
}

}  // namespace fewbits
