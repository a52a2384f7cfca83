#include "core/reservation.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

size_t round_to_pages(size_t bytes) {
  static const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

[[noreturn]] void fail_memory(const char* what, size_t bytes) {
  fail(Exit::memory,
       fmt::format("cannot {} {} of memory: {}", what, format_bytes(static_cast<int64_t>(bytes)), std::strerror(errno)),
       "use more ranks, raise train.micro_batches, or lower train.seq_len");
}

class HostReservation : public Reservation {
 public:
  explicit HostReservation(size_t bytes) : reserved_(round_to_pages(std::max<size_t>(bytes, 1))) {
    void* address = ::mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) fail_memory("reserve", reserved_);
    data_ = static_cast<std::byte*>(address);
  }
  ~HostReservation() override { ::munmap(data_, reserved_); }
  HostReservation(const HostReservation&) = delete;
  HostReservation& operator=(const HostReservation&) = delete;

  std::byte* data() const override { return data_; }
  size_t committed() const override { return committed_; }
  size_t reserved() const override { return reserved_; }
  void commit(size_t bytes) override {
    const size_t wanted = round_to_pages(bytes);
    if (wanted <= committed_) return;
    MW_CHECK(wanted <= reserved_, "commit of {} bytes in a reservation of {}", wanted, reserved_);
    if (::mprotect(data_ + committed_, wanted - committed_, PROT_READ | PROT_WRITE) != 0)
      fail_memory("commit", wanted - committed_);
    committed_ = wanted;
  }
  void zero(size_t bytes) override {
    MW_CHECK(bytes <= committed_, "{} bytes of {} committed ones", bytes, committed_);
    std::memset(data_, 0, bytes);
  }

 private:
  std::byte* data_ = nullptr;
  size_t reserved_ = 0, committed_ = 0;
};

}  // namespace

std::unique_ptr<Reservation> reserve_host(size_t bytes) { return std::make_unique<HostReservation>(bytes); }

}  // namespace mw
