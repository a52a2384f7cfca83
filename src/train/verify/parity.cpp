#include "train/verify/parity.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.h"
#include "config/hf_config.h"
#include "engine/engine.h"
#include "engine/step.h"
#include "formats/tokens/token_file.h"
#include "formats/weights/axis_order.h"
#include "formats/weights/hf_folder.h"
#include "formats/weights/hf_names.h"
#include "formats/weights/safetensors.h"
#include "ops/cross_entropy.h"
#include "train/checkpoint/checkpoint.h"
#include "train/convert/hf_convert.h"
#include "train/convert/hf_weights.h"

namespace mw {
namespace {

// Norm tolerances are what the project promises. Element tolerances are tighter where they can be: rounding leaves a
// few 1e-6 of a tensor's rms, so that a single wrong value of one percent shows even where the whole tensor's norm
// hides it.
struct Tolerance {
  double norm, element;
};
constexpr Tolerance kLogits{1e-4, 5e-5}, kScalar{1e-5, 1e-5}, kGradient{1e-3, 2e-4}, kTrajectoryLoss{1e-3, 5e-4},
    kTrajectoryNorm{1e-2, 1e-3};

class Golden {
 public:
  explicit Golden(const std::string& path) : file_(path) {}

  const SafetensorsEntry& require(const std::string& name) const {
    const SafetensorsEntry* entry = file_.find(name);
    if (entry == nullptr)
      fail(Exit::data, fmt::format("{}: tensor \"{}\" is missing", file_.path(), name),
           "a golden file holds input_ids, labels, logits, loss, grad.* and traj.*");
    return *entry;
  }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const {
    const SafetensorsEntry& entry = require(name);
    std::vector<float> values(static_cast<size_t>(entry.element_count()));
    read_as_f32(file_, entry, 0, values);
    return values;
  }
  std::vector<int32_t> tokens(const std::string& name, int64_t vocab, bool labels) const {
    const SafetensorsEntry& entry = require(name);
    std::vector<int64_t> wide(static_cast<size_t>(entry.element_count()));
    read_as_i64(file_, entry, 0, wide);
    std::vector<int32_t> out;
    for (size_t i = 0; i < wide.size(); ++i) {
      const bool ignored = labels && wide[i] == kIgnoreLabel;
      if (!ignored && (wide[i] < 0 || wide[i] >= vocab))
        fail(Exit::data,
             fmt::format("{}: {}[{}] = {} is outside the vocabulary of {}", file_.path(), name, i, wide[i], vocab),
             "the golden file belongs to another model");
      out.push_back(static_cast<int32_t>(wide[i]));
    }
    return out;
  }
  const SafetensorsFile& file() const { return file_; }

 private:
  SafetensorsFile file_;
};

ParityLine compare(const std::string& name, const float* got, const std::vector<float>& expected, Tolerance tolerance) {
  ParityLine line;
  line.name = name;
  line.norm_tolerance = tolerance.norm;
  line.element_tolerance = tolerance.element;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    difference += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  const double rms = expected.empty() ? 0 : std::sqrt(norm / static_cast<double>(expected.size()));
  // A tensor that is zero up to rounding (a gradient that cancels) is compared absolutely.
  const double floor = 1e-7;
  line.norm_error =
      std::sqrt(difference) /
      std::max(std::sqrt(norm), floor * std::sqrt(static_cast<double>(std::max<size_t>(expected.size(), 1))));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]) /
                         std::max({std::abs(static_cast<double>(expected[i])), rms, floor});
    // A NaN must fail: comparisons with it are false.
    if (!(error <= line.element_error)) {
      line.element_error = std::isnan(error) ? HUGE_VAL : error;
      line.where = fmt::format("[{}] got {} expected {}", i, got[i], expected[i]);
    }
  }
  if (std::isnan(line.norm_error)) line.norm_error = HUGE_VAL;
  return line;
}

// Labels of position t are the next position's, the last of a sequence has none.
MicroBatch shifted_batch(const std::vector<int32_t>& ids, const std::vector<int32_t>& labels, int64_t sequences,
                         int64_t seq_len) {
  MicroBatch batch;
  batch.ids = ids;
  batch.labels.assign(ids.size(), kIgnoreLabel);
  batch.sequences = sequences;
  batch.seq_len = seq_len;
  for (int64_t b = 0; b < sequences; ++b)
    for (int64_t t = 0; t + 1 < seq_len; ++t)
      batch.labels[static_cast<size_t>(b * seq_len + t)] = labels[static_cast<size_t>(b * seq_len + t + 1)];
  return batch;
}

RunSpec parity_run(const std::string& hf_dir, const ModelSpec& model, int64_t sequences, int64_t seq_len) {
  RunSpec run;
  run.hf_dir = hf_dir;
  run.train.seq_len = seq_len;
  run.train.global_batch = sequences;
  run.train.dtype = DType::f32;
  run.train.lr = 1e-3;
  run.train.schedule = LearningRateSchedule::constant;
  run.train.beta1 = 0.9;
  run.train.beta2 = 0.95;
  run.train.eps = 1e-8;
  run.train.weight_decay = 0.1;
  run.train.clip = 1.0;
  run.moe.aux_scope = AuxScope::model;
  // Hugging Face's models have neither a loss over sequences nor a selection bias that moves.
  if (model.sequence_aux) run.moe.aux_loss_coef = 0;
  run.moe.bias_rate = 0;
  return run;
}

ModelSpec load_parity_model(const ParityModel& source) {
  if (!source.hf_dir.empty()) return read_hf_config(source.hf_dir + "/config.json");
  return hf_model_of(read_stored_run(source.checkpoint, {}));
}

void compare_router_logits(Engine& engine, const Golden& golden, ParityReport& report, std::set<std::string>& seen) {
  for (int64_t i = 0; i < engine.model->moe_layers(); ++i) {
    const std::string name = fmt::format("router_logits.{}", i);
    if (!golden.has(name)) continue;
    seen.insert(name);
    const std::vector<float> expected = golden.floats(name);
    const TensorView logits = engine.model->activations().fixed(
        fmt::format("act.{}.logits", engine.model->moe_index()[static_cast<size_t>(i)]));
    if (static_cast<int64_t>(expected.size()) != logits.numel())
      fail(Exit::data,
           fmt::format("{}: {} has {} elements, expected {}", golden.file().path(), name, expected.size(),
                       logits.numel()),
           "the golden file belongs to another model");
    report.lines.push_back(compare(name, logits.as<float>(), expected, kLogits));
  }
}

void compare_gradients(Engine& engine, const Golden& golden, ParityReport& report, std::set<std::string>& seen) {
  for (const HfTensor& tensor : hf_fused_tensors(engine.plan.model)) {
    const Parameter& p = engine.params.find(tensor.param);
    if (!p.row.trained) continue;
    const std::string name = "grad." + tensor.name;
    seen.insert(name);
    const SafetensorsEntry& entry = golden.require(name);
    if (entry.shape != tensor.shape)
      fail(Exit::data,
           fmt::format("{}: {} has shape {}, expected {} as of the model's {}", golden.file().path(), name,
                       format_shape(entry.shape), format_shape(tensor.shape), tensor.param),
           "the golden file belongs to another model");
    const std::vector<float> values = golden.floats(name);
    std::vector<float> expected(values.size());  // in the order of the parameter
    for_each_file_run(tensor, 0, tensor.numel(), [&](int64_t at, int64_t begin, int64_t stride, int64_t count) {
      for (int64_t i = 0; i < count; ++i)
        expected[static_cast<size_t>(at + i)] = values[static_cast<size_t>(begin + i * stride)];
    });
    report.lines.push_back(compare(name, p.grad.as<float>() + tensor.begin, expected, kGradient));
  }
}

void compare_trajectory(Engine& engine, const Golden& golden, int64_t sequences, int64_t seq_len, ParityReport& report,
                        std::set<std::string>& seen) {
  if (!golden.has("traj.input_ids")) return;
  seen.insert({"traj.input_ids", "traj.loss", "traj.grad_norm"});
  const SafetensorsEntry& entry = golden.require("traj.input_ids");
  if (entry.shape.size() != 3 || entry.shape[1] != sequences || entry.shape[2] != seq_len)
    fail(Exit::data,
         fmt::format("{}: traj.input_ids has shape {}, expected [steps, {}, {}]", golden.file().path(),
                     format_shape(entry.shape), sequences, seq_len),
         "the trajectory uses the batch shape of input_ids");
  const std::vector<int32_t> ids = golden.tokens("traj.input_ids", engine.plan.model.vocab, false);
  const std::vector<float> losses = golden.floats("traj.loss"), norms = golden.floats("traj.grad_norm");
  const int64_t steps = entry.shape[0], tokens = sequences * seq_len;
  if (static_cast<int64_t>(losses.size()) != steps || static_cast<int64_t>(norms.size()) != steps)
    fail(Exit::data,
         fmt::format("{}: traj.loss has {} entries and traj.grad_norm {}, expected {} as of traj.input_ids",
                     golden.file().path(), losses.size(), norms.size(), steps),
         "the file is damaged");
  std::vector<float> got_losses, got_norms;
  for (int64_t s = 0; s < steps; ++s) {
    const std::vector<int32_t> step_ids(ids.begin() + s * tokens, ids.begin() + (s + 1) * tokens);
    const MicroBatch batch = shifted_batch(step_ids, step_ids, sequences, seq_len);
    const StepStats stats = accumulate_gradients(engine, stage(engine, std::span(&batch, 1)));
    apply_update(engine, stats, {engine.plan.run.train.lr, s + 1});
    got_losses.push_back(static_cast<float>(stats.total_loss));
    got_norms.push_back(static_cast<float>(stats.grad_norm));
  }
  // Each step is compared with its own value: the rms of a scalar series would hide a wrong one.
  report.lines.push_back(compare("traj.loss", got_losses.data(), losses, kTrajectoryLoss));
  report.lines.push_back(compare("traj.grad_norm", got_norms.data(), norms, kTrajectoryNorm));
}

}  // namespace

bool ParityReport::ok() const {
  return std::all_of(lines.begin(), lines.end(), [](const ParityLine& line) { return line.ok(); });
}

ParityReport run_parity(const ParityModel& source, const std::string& golden_path, Comm& comm, int threads,
                        DeviceChoice device) {
  const ModelSpec model = load_parity_model(source);
  const Golden golden(golden_path);
  const SafetensorsEntry& input = golden.require("input_ids");
  if (input.shape.size() != 2 || input.shape[0] < 1 || input.shape[1] < 2)
    fail(Exit::data,
         fmt::format("{}: input_ids has shape {}, expected [sequences, tokens] with 2 tokens or more", golden_path,
                     format_shape(input.shape)),
         "the file is damaged");
  const int64_t sequences = input.shape[0], seq_len = input.shape[1];
  const auto expect_shape = [&](const char* name, const std::vector<int64_t>& expected, const char* hint) {
    const std::vector<int64_t>& found = golden.require(name).shape;
    if (found != expected)
      fail(Exit::data,
           fmt::format("{}: {} has shape {}, expected {}", golden_path, name, format_shape(found),
                       format_shape(expected)),
           hint);
  };
  expect_shape("labels", input.shape, "the file is damaged");
  expect_shape("logits", {sequences, seq_len, model.vocab}, "the golden file belongs to another model");

  if (!source.hf_dir.empty()) open_hf_folder(model, source.hf_dir);
  RunSpec run = parity_run(source.hf_dir, model, sequences, seq_len);
  run.train.device = device;
  Engine engine(model, run, comm, threads);
  if (source.hf_dir.empty()) load_checkpoint(engine, source.checkpoint, true);
  else import_hf_weights(engine, source.hf_dir);
  ParityReport report;
  std::set<std::string> seen = {"input_ids", "labels", "logits", "loss", "aux_loss"};
  const MicroBatch batch = shifted_batch(golden.tokens("input_ids", model.vocab, false),
                                         golden.tokens("labels", model.vocab, true), sequences, seq_len);
  const StepStats stats = accumulate_gradients(engine, stage(engine, std::span(&batch, 1)));
  compare_router_logits(engine, golden, report, seen);

  engine.model->forward(stage(engine, std::span(&batch, 1)).front(), false);
  const std::vector<float> logits = engine.model->logits(0, sequences * seq_len);
  report.lines.insert(report.lines.begin(), compare("logits", logits.data(), golden.floats("logits"), kLogits));
  const auto scalar = [&](const char* name, double value) {
    if (!golden.has(name)) return;
    const std::vector<float> expected = golden.floats(name);
    if (expected.size() != 1)
      fail(Exit::data, fmt::format("{}: {} has {} values, expected one", golden_path, name, expected.size()),
           "the file is damaged");
    const auto got = static_cast<float>(value);
    report.lines.push_back(compare(name, &got, expected, kScalar));
  };
  golden.require("loss");
  scalar("loss", stats.total_loss);
  scalar("aux_loss", stats.aux_loss);
  compare_gradients(engine, golden, report, seen);
  compare_trajectory(engine, golden, sequences, seq_len, report, seen);
  for (const SafetensorsEntry& entry : golden.file().entries())
    if (seen.count(entry.name) == 0)
      fail(Exit::data, fmt::format("{}: tensor \"{}\" is not known", golden_path, printable(entry.name, 120)),
           "every value of a golden file is compared; this one would be skipped");
  return report;
}

std::string format_report(const ParityReport& report) {
  std::string text = fmt::format("{:<62} {:>10} {:>10}   {}\n", "tensor", "norm err", "worst el.", "tolerance");
  for (const ParityLine& line : report.lines) {
    text +=
        fmt::format("{:<62} {:>10.2e} {:>10.2e}   {:.0e} / {:.0e}{}\n", line.name, line.norm_error, line.element_error,
                    line.norm_tolerance, line.element_tolerance, line.ok() ? "" : "   FAIL " + line.where);
  }
  const auto failed =
      std::count_if(report.lines.begin(), report.lines.end(), [](const ParityLine& l) { return !l.ok(); });
  text += failed == 0 ? fmt::format("parity: all {} tensors agree\n", report.lines.size())
                      : fmt::format("parity: {} of {} tensors differ beyond tolerance\n", failed, report.lines.size());
  return text;
}

}  // namespace mw
