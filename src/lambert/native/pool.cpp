// The threads of the kernels.
//
// The caller of `each` works too, and at the end it waits only for tasks that another thread has begun. A thread that the
// system does not run, because another process has its core, therefore delays nothing: the caller does the work alone.
// OpenMP's threads, which torch uses, have to arrive at the end of every loop.
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "common.h"

namespace lambert {
namespace {

// Times that a thread looks for work before it sleeps: some 50 microseconds. Half a millisecond makes a run beside a busy
// process a fifth slower (benchmarks/training_steps).
constexpr int kSpins = 4000;

void wait(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }

// Waits until the word is not `value`.
void until_changed(std::atomic<uint32_t>& word, uint32_t value, std::atomic<uint32_t>& sleepers) {
    for (int spin = 0; spin < kSpins; ++spin) {
        if (word.load(std::memory_order_acquire) != value) return;
        _mm_pause();
    }
    sleepers.fetch_add(1);
    while (word.load() == value) wait(word, value);
    sleepers.fetch_sub(1);
}

class Pool {
  public:
    bool run(long tasks, long threads, Task task, const void* context) {
        if (busy_.exchange(true, std::memory_order_acquire)) return false;  // another caller has the threads
        while (started_ < threads - 1) {
            std::thread([this, number = started_] { work(number); }).detach();
            ++started_;
        }
        task_ = task, context_ = context, tasks_ = tasks, helpers_ = threads - 1;
        next_.store(0, std::memory_order_relaxed);
        open_.store(true);
        round_.fetch_add(1);
        if (asleep_.load()) wake(round_);
        take_tasks();
        open_.store(false);
        for (uint32_t inside; (inside = inside_.load()) != 0;) until_changed(inside_, inside, waiting_);
        busy_.store(false, std::memory_order_release);
        return true;
    }

  private:
    void work(long number) {
        for (uint32_t seen = 0;;) {
            until_changed(round_, seen, asleep_);
            seen = round_.load();
            // First inside, then open: the caller closes first and then waits until nobody is inside, so whoever finds
            // the loop open may use its task.
            inside_.fetch_add(1);
            if (open_.load() && number < helpers_) take_tasks();
            inside_.fetch_sub(1);
            if (waiting_.load()) wake(inside_);
        }
    }

    void take_tasks() {
        for (long task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) task_(task, context_);
    }

    Task task_;
    const void* context_;
    long tasks_, helpers_, started_ = 0;
    std::atomic<bool> busy_{false}, open_{false};
    std::atomic<long> next_{0};
    std::atomic<uint32_t> round_{0}, inside_{0}, asleep_{0}, waiting_{0};
};

Pool* pool = nullptr;
pthread_once_t once = PTHREAD_ONCE_INIT;

}  // namespace

bool run(long tasks, long threads, Task task, const void* context) {
    pthread_once(&once, [] {
        pool = new Pool;  // never freed: its threads wait in it until the process ends
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });  // a forked process has none of the threads
    });
    return pool->run(tasks, threads, task, context);
}

}  // namespace lambert
