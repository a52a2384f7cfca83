// Stop requests: SIGTERM, SIGUSR1, SIGHUP (the terminal is gone) or SIGINT (Ctrl-C) received by any rank makes all
// ranks stop after the same step.
#pragma once

#include <csignal>
#include <semaphore>
#include <string>
#include <thread>

#include "comm/comm.h"

namespace mw {

// The message that the first Ctrl-C prints, in a run that saves into `checkpoint_dir` ("": nowhere).
std::string interrupt_notice(const std::string& checkpoint_dir);

// While this object lives, stop signals go to a thread of its own instead of the calling thread and threads that it
// starts from now on. Kernels of oneDNN (2.6) use heap memory as their stack for a while; the frame of a handler would
// overwrite what lies below it. Hence to be created before the first computation.
class SignalThread {
 public:
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  sigset_t before_{};
  std::binary_semaphore end_{0};
  std::thread thread_;
};

// Installs the signal handlers; their flag is global to the process. The first SIGINT writes `notice` to stderr, unless
// it is empty; a second one, at least half a second later, kills the process with SIGINT. (Some launchers deliver one
// Ctrl-C twice.) A SIGHUP that is ignored stays so. SIGPIPE and SIGXFSZ are ignored from now on: who reads the log may
// end before the run does, and a file may reach the limit of its size.
void watch_stop_signals(const std::string& notice);

// Whether any rank was asked to stop; the same on every rank. Collective.
bool stop_requested(Comm& world);

}  // namespace mw
