// Address ranges reserved for the worst case and committed on demand: the memory of TensorStore's tensors.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace mw {

// A reserved address range; its first committed() bytes are usable. Each kind of device has its own implementation.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual std::byte* data() const = 0;
  virtual size_t committed() const = 0;
  virtual size_t reserved() const = 0;
  // Makes at least the first `bytes` usable (rounded up to pages). Never shrinks and never moves. Errors: memory.
  virtual void commit(size_t bytes) = 0;
  // Fills the first `bytes`, which must be committed, with zeros.
  virtual void zero(size_t bytes) = 0;
};

// Reserves at least `bytes`. Errors: memory.
using Reserve = std::function<std::unique_ptr<Reservation>(size_t bytes)>;
std::unique_ptr<Reservation> reserve_host(size_t bytes);

}  // namespace mw
