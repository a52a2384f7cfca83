#include "train/loop/run_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "comm/agreement.h"

namespace mw {
namespace {

// The binary unit of a prediction, in which everything beside it is printed.
struct Unit {
  const char* name = "B";
  double bytes = 1;
  explicit Unit(const RunMemory& memory) {
    for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
      if (static_cast<double>(memory.predicted()) < 1024 * bytes) break;
      name = next;
      bytes *= 1024;
    }
  }
  // Two decimals from GiB on, where the first is worth 100 MiB.
  std::string format(int64_t value) const {
    return fmt::format("{:.{}f}", static_cast<double>(value) / bytes, bytes >= 1024.0 * 1024 * 1024 ? 2 : 1);
  }
};

}  // namespace

double RunMemory::percent_above() const {
  if (predicted() <= 0) return 0;
  return 100.0 * static_cast<double>(measured - predicted()) / static_cast<double>(predicted());
}

int64_t rows_taken(const ByteSummary& bytes, int64_t used, DeviceKind device) {
  const int64_t rows = used > 0 ? used : bytes.routed_mean;
  return device == DeviceKind::cpu ? rows : std::max(bytes.routed_committed, rows);
}

RunMemory of_largest_rank(Comm& world, const RunMemory& own) {
  const auto size = [](const RunMemory& m) { return m.measured != 0 ? m.measured : m.predicted(); };
  int64_t largest = size(own);
  world.all_reduce_max(std::span(&largest, 1));
  // Of several ranks with the same size, the one with the highest number is chosen.
  int64_t chosen = size(own) == largest ? world.rank() : -1;
  world.all_reduce_max(std::span(&chosen, 1));
  std::array<int64_t, 4> parts = {};
  if (world.rank() == chosen) parts = {own.fixed, own.rows, own.libraries, own.measured};
  world.all_reduce_sum(std::span(parts));
  return {parts[0], parts[1], parts[2], parts[3]};
}

RunMemory memory_of_largest_rank(Engine& engine, const ByteSummary& bytes) {
  const int64_t rows = rows_taken(bytes, engine.model->activations().peak_growing_bytes(), engine.device.kind);
  return of_largest_rank(engine.world, {bytes.fixed, rows, engine.library_bytes, engine.memory.taken()});
}

std::string measured_of_predicted(const RunMemory& m) {
  const Unit unit(m);
  return fmt::format("{} of {} {}", unit.format(m.measured), unit.format(m.predicted()), unit.name);
}

namespace {

std::string format_prediction(const RunMemory& m, const Unit& unit) {
  std::string text = fmt::format("{} {} (tensors {}", unit.format(m.predicted()), unit.name, unit.format(m.fixed));
  if (m.rows > 0) text += fmt::format(", rows that depend on the load {}", unit.format(m.rows));
  return text + fmt::format(", libraries {})", unit.format(m.libraries));
}

}  // namespace

std::string describe_prediction(const RunMemory& m) { return format_prediction(m, Unit(m)); }

std::string compare(const RunMemory& m) {
  const Unit unit(m);
  return fmt::format("measured {} {} ({:+.1f} %), predicted {}", unit.format(m.measured), unit.name, m.percent_above(),
                     format_prediction(m, unit));
}

std::vector<std::string> describe_memory(Engine& engine, const ByteSummary& bytes, const RunMemory& largest) {
  const TensorStore& activations = engine.model->activations();
  // Of any rank: rows that depend on the load, as they came and as the table has them.
  std::array<int64_t, 4> rows = {activations.peak_growing_bytes(), bytes.routed_mean, bytes.routed_committed,
                                 bytes.routed_max};
  engine.world.all_reduce_max(std::span(rows));
  const bool differs =
      on_any_rank(engine.world, bytes.fixed != engine.params.fixed_bytes() + activations.fixed_bytes());
  std::vector<std::string> lines = {fmt::format("memory of the largest rank: {}; fixed tensors {} on every rank",
                                                compare(largest),
                                                differs ? "NOT EQUAL to the table of bytes" : "equal to the byte")};
  if (rows[2] > 0)
    lines.push_back(
        fmt::format("rows that depend on the load: {} used, {} balanced, {} committed at start, {} at worst",
                    format_bytes(rows[0]), format_bytes(rows[1]), format_bytes(rows[2]), format_bytes(rows[3])));
  return lines;
}

}  // namespace mw
