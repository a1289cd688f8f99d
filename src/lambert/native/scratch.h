// Memory that a thread keeps from one task to the next.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace lambert {

// Hands out aligned arrays, and takes all of them back at its end. A thread has one at a time.
class Scratch {
  public:
    Scratch() { blocks().used = 0; }

    template <class T>
    T* take(long count) {
        const size_t bytes = (count * sizeof(T) + 63) / 64 * 64 + 64;  // 64 more: no two arrays begin on the same set
        Blocks& all = blocks();
        if (all.used == all.list.size()) all.list.push_back({});
        Block& block = all.list[all.used++];
        if (block.bytes < bytes) {
            std::free(block.memory);
            block = {std::aligned_alloc(64, bytes), bytes};
            if (!block.memory) throw std::bad_alloc();
        }
        return static_cast<T*>(block.memory);
    }

  private:
    struct Block {
        void* memory = nullptr;
        size_t bytes = 0;
    };
    struct Blocks {
        std::vector<Block> list;
        size_t used = 0;
        ~Blocks() {
            for (Block& block : list) std::free(block.memory);
        }
    };
    static Blocks& blocks() {
        static thread_local Blocks all;
        return all;
    }
};

}  // namespace lambert
