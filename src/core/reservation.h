// Memory that is reserved for the worst case and committed as it is needed: what arenas are made of.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace mw {

// A range of reserved address space of which a prefix is committed. A device brings its own kind.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual std::byte* data() const = 0;
  virtual size_t committed() const = 0;
  virtual size_t reserved() const = 0;
  // Makes the first `bytes` usable (rounded up to pages). Never shrinks, never moves. Errors: memory.
  virtual void commit(size_t bytes) = 0;
  // Fills the first `bytes`, which must be committed, with zeros.
  virtual void zero(size_t bytes) = 0;
};

// Reserves at least `bytes`. Errors: memory.
using Reserve = std::function<std::unique_ptr<Reservation>(size_t bytes)>;
std::unique_ptr<Reservation> reserve_host(size_t bytes);

}  // namespace mw
