// Tasks in parallel, on torch's own OpenMP pool where it can be shared. docs/cpu-native.md, "Threads".
#pragma once
#include <stdint.h>

#include <memory>
#include <type_traits>

namespace qd {

// Calls body(context, begin, end, thread) for disjoint ranges that cover [0, tasks). Ranges are claimed one after
// another, so which thread gets which is chance: a task's result must depend on its number alone. `thread` is below
// `threads` and no two calls that run at once have the same, so it may index scratch memory. Threads are started only
// where each has `work / threads` worth it: roughly the bytes read or the multiply-adds done by all tasks together.
// What a task throws is thrown again here, after all threads have stopped; the tasks that were left are not run.
void run_parallel(int64_t tasks, int32_t threads, int64_t work, void (*body)(void*, int64_t, int64_t, int32_t),
                  void* context);

constexpr int64_t kMuchWork = int64_t{1} << 40;

// fn(begin, end, thread) for ranges of tasks.
template <class Fn>
void parallel_for(int64_t tasks, int32_t threads, Fn&& fn, int64_t work = kMuchWork) {
  using Plain = typename std::remove_reference<Fn>::type;
  run_parallel(
      tasks, threads, work,
      [](void* context, int64_t begin, int64_t end, int32_t thread) {
        (*static_cast<Plain*>(context))(begin, end, thread);
      },
      const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
}

}  // namespace qd
