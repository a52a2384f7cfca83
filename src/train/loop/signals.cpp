#include "train/loop/signals.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "comm/agreement.h"

namespace mw {
namespace {

// A handler may touch nothing but such variables.
volatile std::sig_atomic_t stop_flag = 0;
std::array<char, 512> notice_text;
size_t notice_size = 0;
timespec first_interrupt{};

void on_signal(int) { stop_flag = 1; }

double seconds_since(const timespec& begin) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - begin.tv_nsec);
}

void on_interrupt(int) {
  constexpr double kSameKeyPress = 0.5;  // seconds
  const int saved_errno = errno;
  stop_flag = 1;
  if (first_interrupt.tv_sec == 0) {
    clock_gettime(CLOCK_MONOTONIC, &first_interrupt);
    if (write(STDERR_FILENO, notice_text.data(), notice_size) < 0) errno = 0;  // nobody is there to read
  } else if (seconds_since(first_interrupt) > kSameKeyPress) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  errno = saved_errno;
}

}  // namespace

std::string interrupt_notice(const std::string& checkpoint_dir) {
  const std::string saves = checkpoint_dir.empty() ? "checkpoint.dir is empty, so nothing is saved"
                                                   : "with a checkpoint in " + checkpoint_dir;
  return "\nmoewright: stopping after this step, " + saves + "; press Ctrl-C again to exit at once\n";
}

SignalThread::SignalThread() : thread_([this] { end_.acquire(); }) {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int number : {SIGTERM, SIGUSR1, SIGHUP, SIGINT}) sigaddset(&stops, number);
  pthread_sigmask(SIG_BLOCK, &stops, &before_);
}

SignalThread::~SignalThread() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  end_.release();
  thread_.join();
}

void watch_stop_signals(const std::string& notice) {
  notice_size = std::min(notice.size(), notice_text.size());
  std::copy_n(notice.data(), notice_size, notice_text.data());
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  struct sigaction inherited {};
  if (sigaction(SIGHUP, nullptr, &inherited) == 0 && inherited.sa_handler != SIG_IGN)  // which nohup asks for
    sigaction(SIGHUP, &action, nullptr);
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);  // writes fail instead
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
}

bool stop_requested(Comm& world) { return on_any_rank(world, stop_flag != 0); }

}  // namespace mw
