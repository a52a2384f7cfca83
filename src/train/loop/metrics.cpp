#include "train/loop/metrics.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/file.h"
#include "base/text.h"

namespace mw {
namespace {

double bits(double nats) { return nats / std::numbers::ln2; }

double teraflops_per_rank(const StepReport& r, const ReportContext& c) {
  return c.flops_per_token * static_cast<double>(r.tokens) / r.seconds / c.world * 1e-12;
}

nlohmann::ordered_json json_of(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

template <class... T>
void tell(fmt::format_string<T...> text, T&&... values) {
  std::fputs(fmt::format("moewright: {}\n", fmt::format(text, std::forward<T>(values)...)).c_str(), stderr);
}

}  // namespace

std::string format_step(const StepReport& r, const ReportContext& c, size_t columns) {
  const bool is_long = columns == 0;
  std::string loss = fmt::format("loss {:.4f}", r.stats.loss);
  if (c.byte_tokens) loss += fmt::format(" bpb {:.3f}", bits(r.stats.loss));
  if (is_long) loss += fmt::format(" aux {:.3f}", r.stats.aux_loss);
  std::string speed =
      fmt::format("{:.0f} ms {} tok/s", r.seconds * 1e3, format_count(static_cast<double>(r.tokens) / r.seconds));
  if (is_long) speed += fmt::format(" {:.3f} TF/s per rank", teraflops_per_rank(r, c));
  std::string balance = fmt::format("bal {:.2f}", r.stats.imbalance());
  if (r.stats.dropped_rows > 0) balance += fmt::format(" drop {}", r.stats.dropped_rows);
  if (r.arena_grows > 0) balance += fmt::format(" grows {}", r.arena_grows);
  const std::string parts[] = {
      fmt::format("{} gnorm {:.3g} lr {:.1e}", loss, r.stats.grad_norm, r.lr),
      speed,
      fmt::format("{} mem {}", balance, measured_of_predicted(r.memory)),
      fmt::format("eta {}", format_duration(r.eta_seconds)),
  };
  std::string line = fmt::format("step {}/{}", r.step, c.steps);
  for (const std::string& part : parts)
    if (is_long || line.size() + 3 + part.size() <= columns) line += " | " + part;
  return line;
}

static void add_validation(nlohmann::ordered_json& line, const std::string& prefix,
                           const ValidationReport& validation) {
  line[prefix + "loss"] = json_of(validation.loss);
  for (const std::optional<double>& loss : validation.by_source) line[prefix + "losses"].push_back(json_of(loss));
  if (validation.accuracy) line[prefix + "accuracy"] = *validation.accuracy;
}

static void add_validation(std::vector<Scalar>& scalars, const ValidationReport& validation) {
  if (validation.loss) scalars.push_back({"loss/validation", *validation.loss});
  for (size_t k = 0; k < validation.by_source.size(); ++k)
    if (validation.by_source[k]) scalars.push_back({fmt::format("loss/validation_{}", k), *validation.by_source[k]});
  if (validation.accuracy) scalars.push_back({"validation/accuracy", *validation.accuracy});
}

void write_step(JsonLinesWriter& file, const StepReport& r, const ReportContext& c, const nlohmann::ordered_json& run) {
  nlohmann::ordered_json line;
  line["step"] = r.step;
  line["loss"] = r.stats.loss;
  if (c.byte_tokens) line["bits_per_byte"] = bits(r.stats.loss);
  line["aux_loss"] = r.stats.aux_loss;
  line["z_loss"] = r.stats.z_loss;
  line["total_loss"] = r.stats.total_loss;
  line["grad_norm"] = r.stats.grad_norm;
  line["lr"] = r.lr;
  line["step_ms"] = r.seconds * 1e3;
  line["samples"] = r.samples;
  line["tokens"] = r.tokens;
  line["valid_labels"] = r.stats.valid_labels;
  line["tokens_per_s"] = static_cast<double>(r.tokens) / r.seconds;
  line["flops_per_token"] = c.flops_per_token;
  line["tflops_per_rank"] = teraflops_per_rank(r, c);
  line["mfu"] = nullptr;
  if (c.forecast.time) line["mfu"] = teraflops_per_rank(r, c) * 1e12 / c.forecast.peak_flops_per_s;
  line["ranks"] = c.world;
  line["layout"] = c.layout;
  line["dtype"] = c.dtype;
  line["mem_peak_bytes"] = r.memory.measured;
  line["mem_predicted_bytes"] = r.memory.tensors();
  line["mem_library_bytes"] = r.memory.libraries;
  const bool foreseen = r.samples == c.global_batch;
  if (c.forecast.exchanged.all() > 0) {
    line["transport"] = c.forecast.transport;
    line["exchanged_bytes"] = r.sent.all;
    if (foreseen) line["exchanged_predicted_bytes"] = c.forecast.exchanged.all();
  }
  if (c.forecast.exchanged.far > 0) {
    line["exchanged_far_bytes"] = r.sent.far;
    if (foreseen) line["exchanged_far_predicted_bytes"] = c.forecast.exchanged.far;
  }
  if (const std::optional<StepTime>& time = c.forecast.time; time && foreseen) {
    line["predicted_step_ms"] = time->total() * 1e3;
    line["predicted_ms"] = {{"compute", time->compute * 1e3},
                            {"exchange", time->exchange * 1e3},
                            {"bubble", time->bubble * 1e3},
                            {"optimizer", time->optimizer * 1e3}};
  }
  if (r.parts)
    line["measured_ms"] = {{"compute", r.parts->compute * 1e3},
                           {"waiting", r.parts->waiting * 1e3},
                           {"optimizer", r.parts->optimizer * 1e3}};
  line["imbalance"] = r.stats.imbalance();
  if (r.balance.rank_imbalance > 0) {
    line["rank_imbalance"] = r.balance.rank_imbalance;
    line["worst_rank_imbalance"] = r.balance.worst_rank_imbalance;
  }
  if (r.balance.replica_rows > 0) line["replica_rows"] = r.balance.replica_rows;
  if (r.balance.moved_experts > 0) {
    line["moved_experts"] = r.balance.moved_experts;
    line["moved_expert_bytes"] = r.balance.moved_bytes;
    line["move_experts_ms"] = r.balance.move_seconds * 1e3;
    if (r.balance.expected_gain) line["move_gain_predicted_ms"] = *r.balance.expected_gain * 1e3;
  }
  if (r.skipped_steps > 0) line["skipped_steps"] = r.skipped_steps;
  if (!r.stats.largest_logits.empty()) line["largest_logit"] = r.stats.largest_logit();
  line["dropped_rows"] = r.stats.dropped_rows;
  line["arena_grows"] = r.arena_grows;
  if (r.validation) add_validation(line, "val_", *r.validation);
  for (size_t w = 0; w < r.work_seconds.size(); ++w)
    line["work_ms"][name_of(static_cast<Work>(w))] = r.work_seconds[w] * 1e3;
  if (r.lists_loads) {
    line["expert_load"] = r.stats.load;
    if (r.balance.rank_imbalance > 0) line["rank_rows"] = r.balance.rank_rows;
  }
  if (!run.empty()) line["run"] = run;
  file.write(line);
}

std::vector<Scalar> step_scalars(const StepReport& r, const ReportContext& c) {
  std::vector<Scalar> scalars = {{"loss/train", r.stats.loss},
                                 {"loss/aux", r.stats.aux_loss},
                                 {"loss/z", r.stats.z_loss},
                                 {"loss/total", r.stats.total_loss},
                                 {"optimizer/grad_norm", r.stats.grad_norm},
                                 {"optimizer/lr", r.lr},
                                 {"optimizer/samples", static_cast<double>(r.samples)},
                                 {"optimizer/skipped_steps", static_cast<double>(r.skipped_steps)},
                                 {"speed/step_ms", r.seconds * 1e3},
                                 {"speed/tokens_per_s", static_cast<double>(r.tokens) / r.seconds},
                                 {"speed/tflops_per_rank", teraflops_per_rank(r, c)},
                                 {"memory/peak_bytes", static_cast<double>(r.memory.measured)},
                                 {"memory/predicted_bytes", static_cast<double>(r.memory.predicted())},
                                 {"moe/imbalance", r.stats.imbalance()},
                                 {"moe/rank_imbalance", r.balance.rank_imbalance},
                                 {"moe/moved_experts", static_cast<double>(r.balance.moved_experts)},
                                 {"moe/dropped_rows", static_cast<double>(r.stats.dropped_rows)},
                                 {"moe/arena_grows", static_cast<double>(r.arena_grows)}};
  if (c.byte_tokens) scalars.push_back({"loss/bits_per_byte", bits(r.stats.loss)});
  if (!r.stats.largest_logits.empty()) scalars.push_back({"attention/largest_logit", r.stats.largest_logit()});
  if (r.validation) add_validation(scalars, *r.validation);
  for (size_t layer = 0; layer < r.stats.load.size(); ++layer) {
    const std::vector<double>& load = r.stats.load[layer];
    const double sum = std::accumulate(load.begin(), load.end(), 0.0);
    if (sum <= 0) continue;
    const auto [low, high] = std::minmax_element(load.begin(), load.end());
    const double mean = sum / static_cast<double>(load.size());
    scalars.push_back({fmt::format("load_max/moe_layer_{}", layer), *high / mean});
    scalars.push_back({fmt::format("load_min/moe_layer_{}", layer), *low / mean});
  }
  return scalars;
}

RunLog::RunLog(const LogSpec& log, int64_t last_step, bool branches) {
  if (!log.jsonl.empty()) open_lines(log.jsonl, last_step, branches);
  if (!log.tensorboard.empty()) events_ = std::make_unique<EventFileWriter>(log.tensorboard, last_step);
}

RunLog::~RunLog() {
  for (const auto& [is_behind, key] :
       {std::pair(lines_behind_, "log.jsonl"), std::pair(events_behind_, "log.tensorboard")})
    if (is_behind) tell("warning: {} lacks the last steps, which could not be written", key);
}

void RunLog::open_lines(const std::string& path, int64_t last_step, bool branches) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // what went wrong shows when the file is opened
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  try {
    wait_for_writer(path, std::chrono::seconds(10));  // a run before this one may be about to exit
    if (last_step == 0 || branches) {
      if (const std::string aside = last_step == 0 ? set_lines_aside(path) : copy_lines_aside(path); !aside.empty())
        note_ = fmt::format("metrics: {} of an earlier run is kept as {}", path, aside);
    }
    if (last_step > 0)
      if (const int64_t removed = truncate_after_step(path, last_step).beyond; removed > 0 && note_.empty())
        note_ = fmt::format("metrics: {} lines after step {} removed from {}", removed, last_step, path);
    lines_ = std::make_unique<JsonLinesWriter>(path);
    path_ = path;
  } catch (const Error& error) {
    fail(error.code(), fmt::format("log.jsonl = \"{}\": {}", printable(path), error.what()), error.hint());
  }
}

void RunLog::reopen_lost() {
  std::error_code ignored;
  if (lines_ == nullptr || std::filesystem::exists(path_, ignored)) return;
  try {
    create_folder_of(path_);
    lines_ = std::make_unique<JsonLinesWriter>(path_);
  } catch (const Error& error) {
    tell("warning: {}; the run goes on without this file", error.what());
    lines_.reset();
  }
}

template <class Write>
void RunLog::attempt(bool& is_behind, const char* key, const Write& write) {
  try {
    write();
    if (std::exchange(is_behind, false)) tell("{} is written again", key);
  } catch (const Error& error) {
    if (std::exchange(is_behind, true)) return;
    tell("warning: {}; the run goes on, and tries again at each step: the steps that {} lacks wait in memory",
         error.what(), key);
  }
}

void RunLog::write(const StepReport& report, const ReportContext& context) {
  if (lines_ != nullptr)
    attempt(lines_behind_, "log.jsonl", [&] { write_step(*lines_, report, context, std::exchange(run_, {})); });
  if (events_ != nullptr)
    attempt(events_behind_, "log.tensorboard", [&] { events_->write(report.step, step_scalars(report, context)); });
}

void RunLog::write_final_validation(int64_t step, const ValidationReport& validation) {
  nlohmann::ordered_json line = {{"step", step}};
  add_validation(line, "final_val_", validation);
  std::vector<Scalar> scalars;
  add_validation(scalars, validation);
  if (lines_ != nullptr) attempt(lines_behind_, "log.jsonl", [&] { lines_->write(line); });
  if (events_ != nullptr) attempt(events_behind_, "log.tensorboard", [&] { events_->write(step, scalars); });
}

}  // namespace mw
