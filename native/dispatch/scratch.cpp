#include "dispatch/scratch.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "dispatch/pages.hpp"

namespace fewbits {
namespace {

constexpr std::size_t page = std::size_t{2} << 20;  // a huge one, where the system gives them to those who ask
constexpr std::size_t most_kept = std::size_t{768} << 20;  // more goes back to the system: 8000 unknowns in double fit
constexpr int places = 4;

// Its first bytes say how large it is and when it came, while it waits. No lock: a forked child may have it too.
struct Waiting {
    std::size_t size;
    std::uint64_t since;  // how many came before it
};
std::atomic<Waiting*> waiting[places];
std::atomic<std::uint64_t> came{0};

// All that waits, by size; another thread that looks meanwhile finds nothing and gets new memory.
struct Taken {
    Waiting* memory[places + 1];
    int count = 0;

    Taken() {
        for (auto& place : waiting)
            if (Waiting* found = place.exchange(nullptr)) memory[count++] = found;
    }

    Waiting* remove(int i) {
        Waiting* removed = memory[i];
        std::copy(memory + i + 1, memory + count--, memory + i);
        return removed;
    }

    void sort() {
        std::sort(memory, memory + count, [](const Waiting* a, const Waiting* b) { return a->size < b->size; });
    }

    int longest() const {
        return static_cast<int>(std::min_element(memory, memory + count, [](const Waiting* a, const Waiting* b) { return a->since < b->since; }) - memory);
    }

    // What finds no place any more, because another thread was here, is freed.
    ~Taken() {
        int i = 0;
        for (auto& place : waiting) {
            Waiting* empty = nullptr;
            if (i < count && place.compare_exchange_strong(empty, memory[i])) ++i;
        }
        while (i < count) std::free(memory[i++]);
    }
};

// What a call left is what the next one finds: whoever reads what it never wrote may find the right numbers in all tests. The
// sanitized build finds NaN there, which no result survives.
void forget([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(FEWBITS_SANITIZE)
    std::memset(data, 0xff, bytes);
#endif
}

}  // namespace

Scratch::Scratch(std::size_t bytes) {
    {
        Taken taken;
        taken.sort();
        for (int i = 0; i < taken.count; ++i) {
            if (taken.memory[i]->size < bytes) continue;
            size_ = taken.memory[i]->size;
            data_ = reinterpret_cast<std::uint8_t*>(taken.remove(i));
            forget(data_, bytes);
            return;
        }
    }
    size_ = (bytes / page + 1) * page;
    data_ = static_cast<std::uint8_t*>(std::aligned_alloc(page, size_));
    if (data_ == nullptr) throw std::bad_alloc();
    ask_for_huge_pages(data_, size_);
    forget(data_, bytes);
}

Scratch::~Scratch() {
    Taken taken;
    taken.memory[taken.count++] = new (data_) Waiting{size_, came++};
    taken.sort();
    std::size_t kept = 0;
    for (int i = 0; i < taken.count; ++i) kept += taken.memory[i]->size;
    // Large memory costs most to get anew, so the smallest leaves. If all together are too much, what waited longest leaves:
    // a solver that comes back with the same sizes finds them, whatever sizes were in use before.
    while (taken.count > places || kept > most_kept) {
        Waiting* left = taken.remove(kept > most_kept ? taken.longest() : 0);
        kept -= left->size;
        std::free(left);
    }
}

}  // namespace fewbits
