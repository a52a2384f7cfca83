// A thread pool that runs tasks in the order of their submission.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mw {

// A task gets the number of its thread, 0 to threads - 1, and must not throw (std::packaged_task keeps exceptions). The
// destructor waits for running tasks and drops the others.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void add(std::function<void(int)> task);

 private:
  void work(int thread);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(int)>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mw
