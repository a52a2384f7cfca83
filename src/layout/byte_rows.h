// Collects the rows of one table of bytes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "layout/byte_table.h"

namespace mw {

class ByteRows {
 public:
  void add(std::string name, ByteKind kind, DType dtype, std::vector<int64_t> shape, bool on_host = false) {
    rows.push_back({std::move(name), kind, dtype, std::move(shape), 0, 0, on_host});
  }
  std::vector<ByteRow> rows;
};

}  // namespace mw
