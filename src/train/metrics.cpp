#include "train/metrics.h"

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace mw {
namespace {

double teraflops_per_rank(const StepReport& r, const ReportContext& c) {
  return c.flops_per_token * static_cast<double>(r.tokens) / r.seconds / c.world * 1e-12;
}

}  // namespace

std::string format_step(const StepReport& r, const ReportContext& c) {
  std::string line = fmt::format(
      "step {}/{} | loss {:.4f} aux {:.3f} | gnorm {:.2f} | lr {:.1e} | {:.0f} ms | {} tok/s | {:.3f} TF/s per rank | "
      "mem {} of {} | bal {:.2f}",
      r.step, c.steps, r.stats.loss, r.stats.aux_loss, r.stats.grad_norm, r.lr, r.seconds * 1e3,
      format_count(static_cast<double>(r.tokens) / r.seconds), teraflops_per_rank(r, c), format_bytes(r.memory_peak),
      format_bytes(r.memory_predicted + r.memory_libraries.value_or(0)), r.stats.imbalance());
  if (r.stats.dropped_rows > 0) line += fmt::format(" drop {}", r.stats.dropped_rows);
  if (r.arena_grows > 0) line += fmt::format(" grows {}", r.arena_grows);
  return line + fmt::format(" | eta {}", format_duration(r.eta_seconds));
}

void write_step(JsonLinesWriter& file, const StepReport& r, const ReportContext& c) {
  nlohmann::ordered_json line;
  line["step"] = r.step;
  line["loss"] = r.stats.loss;
  line["aux_loss"] = r.stats.aux_loss;
  line["z_loss"] = r.stats.z_loss;
  line["total_loss"] = r.stats.total_loss;
  line["grad_norm"] = r.stats.grad_norm;
  line["lr"] = r.lr;
  line["step_ms"] = r.seconds * 1e3;
  line["tokens"] = r.tokens;
  line["valid_labels"] = r.stats.valid_labels;
  line["tokens_per_s"] = static_cast<double>(r.tokens) / r.seconds;
  line["flops_per_token"] = c.flops_per_token;
  line["tflops_per_rank"] = teraflops_per_rank(r, c);
  line["mfu"] = nullptr;
  line["mem_peak_bytes"] = r.memory_peak;
  line["mem_predicted_bytes"] = r.memory_predicted;
  if (r.memory_libraries) line["mem_library_bytes"] = *r.memory_libraries;
  line["imbalance"] = r.stats.imbalance();
  line["dropped_rows"] = r.stats.dropped_rows;
  line["arena_grows"] = r.arena_grows;
  if (r.val_loss) line["val_loss"] = *r.val_loss;
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const std::vector<double>& load : r.stats.load) layers.push_back(load);
  line["expert_load"] = layers;
  file.write(line);
}

}  // namespace mw
