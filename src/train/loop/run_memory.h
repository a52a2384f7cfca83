// Predicted and measured memory of a run: the one source for what the header, the step line, the metrics (and from them
// the report) and the last line print.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "core/device.h"
#include "engine/engine.h"
#include "layout/byte_table.h"

namespace mw {

// Bytes of one rank.
struct RunMemory {
  int64_t fixed = 0;      // tensors of the byte table whose size is known
  int64_t rows = 0;       // its tensors whose rows depend on the load, see rows_taken
  int64_t libraries = 0;  // memory of libraries, measured before tensors are allocated
  int64_t measured = 0;   // growth of the peak resident set on a CPU, device memory taken on a GPU; 0: not yet

  int64_t tensors() const { return fixed + rows; }
  int64_t predicted() const { return tensors() + libraries; }
  // How far the measurement is above the prediction (negative: below), in percent; 0 without a prediction.
  double percent_above() const;
};

// Memory of the load-dependent rows when at most `used` bytes of them were used so far. Before the first step (used =
// 0) a balanced load is assumed. A CPU takes pages at first use, a GPU takes all committed memory at the start.
int64_t rows_taken(const ByteSummary& bytes, int64_t used, DeviceKind device);

// The memory of the rank that measured most, or before any measurement of the one with the largest prediction. Every
// rank gets it. Collective over `world`.
RunMemory of_largest_rank(Comm& world, const RunMemory& own);

// The same of the memory that the ranks took so far. bytes: of this rank. Collective.
RunMemory memory_of_largest_rank(Engine& engine, const ByteSummary& bytes);

// "173.9 of 114.1 MiB": measured and predicted. All texts are in the unit of the prediction.
std::string measured_of_predicted(const RunMemory& memory);
// "114.1 MiB (tensors 98.0, rows that depend on the load 8.0, libraries 8.1)": the prediction.
std::string describe_prediction(const RunMemory& memory);
// "measured 173.9 MiB (+52.4 %), predicted 114.1 MiB (tensors ...)".
std::string compare(const RunMemory& memory);

// The last lines on memory: `largest` (memory_of_largest_rank), whether every rank has the fixed tensors of its table
// of bytes, and the largest use of rows that depend on the load. The same on all ranks. Collective.
std::vector<std::string> describe_memory(Engine& engine, const ByteSummary& bytes, const RunMemory& largest);

}  // namespace mw
