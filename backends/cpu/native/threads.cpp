#include "threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "abi.h"

namespace qd {
namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

std::atomic<GompParallel> shared_pool{nullptr};
std::once_flag fork_handler;

// GNU's libgomp keeps, after fork, a pool of threads that the child does not have, and waits for them for ever.
void leave_pool() { shared_pool.store(nullptr, std::memory_order_relaxed); }

// A thread's share below which it is not worth waking, and not worth starting.
constexpr int64_t kWake = int64_t{1} << 15;
constexpr int64_t kStart = int64_t{1} << 19;
// Ranges of a thread: enough that one which is held up by others on its core does not hold up all.
constexpr int64_t kRanges = 8;

struct Job {
  void (*body)(void*, int64_t, int64_t, int32_t);
  void* context;
  int64_t tasks, range;
  std::atomic<int64_t> next{0};
  std::atomic<int32_t> thread{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;

  void work() noexcept {
    const int32_t self = thread.fetch_add(1, std::memory_order_relaxed);
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const int64_t begin = next.fetch_add(range, std::memory_order_relaxed);
        if (begin >= tasks) return;
        body(context, begin, std::min(begin + range, tasks), self);
      }
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  }
};

void work_on(void* job) { static_cast<Job*>(job)->work(); }

void run_on_plain_threads(Job& job, int32_t threads) {
  std::vector<std::thread> started;
  try {
    started.reserve(static_cast<size_t>(threads) - 1);
    for (int32_t i = 1; i < threads; ++i) started.emplace_back(work_on, &job);
  } catch (const std::system_error&) {  // no more threads: those that are there do it
  } catch (const std::bad_alloc&) {
  }
  job.work();
  for (std::thread& thread : started) thread.join();
}

}  // namespace

void run_parallel(int64_t tasks, int32_t threads, int64_t work, void (*body)(void*, int64_t, int64_t, int32_t),
                  void* context) {
  const GompParallel pool = shared_pool.load(std::memory_order_relaxed);
  const int64_t worth = std::max<int64_t>(work / (pool ? kWake : kStart), 1);
  threads = static_cast<int32_t>(std::min({static_cast<int64_t>(threads), tasks, worth}));
  if (threads <= 1) {
    if (tasks > 0) body(context, 0, tasks, 0);
    return;
  }
  Job job;
  job.body = body;
  job.context = context;
  job.tasks = tasks;
  job.range = std::max<int64_t>(tasks / (threads * kRanges), 1);
  if (pool) {
    pool(work_on, &job, static_cast<unsigned>(threads), 0);
  } else {
    run_on_plain_threads(job, threads);
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace qd

extern "C" void qd_set_pool(void* gomp_parallel, void*) {
#if !defined(_WIN32)
  std::call_once(qd::fork_handler, [] { pthread_atfork(nullptr, nullptr, qd::leave_pool); });
#endif
  qd::shared_pool.store(reinterpret_cast<qd::GompParallel>(gomp_parallel), std::memory_order_relaxed);
}
