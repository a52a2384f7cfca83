// Shared by the tests of this room: a whole small model in one process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "model/platform.h"
#include "model/transformer.h"
#include "support/small_run.h"

namespace mw::test {

// After forward of a whole model: the sum of the losses of its tokens, with gradients of seed * sum if seed > 0. Waits
// for the stream.
inline double summed_loss(Transformer& model, const Batch& batch, float seed) {
  std::vector<float> losses;
  model.loss(0, batch, seed, losses, Store::overwrite);
  model.stream().wait();
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

struct SmallModel {
  explicit SmallModel(const RunSpec& run_spec, int threads = 1)
      : SmallModel(run_spec, threads,
                   measure_platform(build_native_model(run_spec.native), run_spec, Mesh{}, threads)) {}
  SmallModel(const RunSpec& run_spec, int threads, const Platform& platform)
      : run(run_spec),
        spec(build_native_model(run.native)),
        plan(make_plan(spec, run, 1, 0, platform)),
        comms(make_mesh_comms(*world, plan.mesh)),
        stream(threads),
        params(plan),
        model(plan, params, comms, stream) {
    params.initialise(3, stream);
    // Gains off one, and a bias that matters: otherwise their gradients and effects are special.
    for (Parameter& p : params.all())
      if (p.row.role == ParamRole::norm || p.row.role == ParamRole::selection)
        for (int64_t i = 0; i < p.master.numel(); ++i)
          p.master.as<float>()[i] += 0.2f * normal_at(make_rng_key(4, p.row.name), static_cast<uint64_t>(i));
    params.repack(stream);
    const RngKey key = make_rng_key(5, "tokens");
    for (int64_t t = 0; t < plan.batch.tokens(); ++t) {
      ids.push_back(static_cast<int32_t>(bits_at(key, static_cast<uint64_t>(t)) % 29));
      labels.push_back(t % 5 == 2 ? -100 : static_cast<int32_t>(bits_at(key, static_cast<uint64_t>(t) + 1000) % 29));
      valid += labels.back() >= 0 ? 1 : 0;
      const int64_t at = t % plan.batch.seq_len;
      const bool begins = at == 0 || bits_at(key, static_cast<uint64_t>(t) + 2000) % 4 == 0;
      starts.push_back(begins ? static_cast<int32_t>(at) : starts.back());
    }
    for (const int64_t layer : model.moe_index())
      choices.emplace_back(
          static_cast<size_t>(plan.batch.tokens() * spec.layers[static_cast<size_t>(layer)].moe.top_k));
    best_choices = choices;
  }

  Batch batch() const {
    return {ids.data(), labels.data(), plan.batch.sequences, plan.batch.seq_len,
            run.data.document_mask ? starts.data() : nullptr};
  }
  // The whole loss as training has it; with `replay` under the routing of the first call.
  double loss(bool replay, bool with_gradients = false) {
    std::vector<RoutingTap> taps;
    for (size_t l = 0; l < choices.size(); ++l)
      if (replay) taps.push_back({.replay_ids = choices[l].data(), .replay_best_ids = best_choices[l].data()});
      else taps.push_back({.ids = choices[l].data(), .best_ids = best_choices[l].data()});
    model.forward(batch(), true, taps);
    const double count = static_cast<double>(valid);
    const float seed = with_gradients ? static_cast<float>(1 / count) : 0.0f;
    const double cross_entropy = summed_loss(model, batch(), seed) / count;
    aux = model.set_auxiliary(model.statistics(), plan.batch.tokens(), 1.0);
    if (with_gradients) model.backward(batch(), Store::overwrite);
    return cross_entropy + aux.weighted;
  }

  RunSpec run;
  std::unique_ptr<Comm> world = make_self_comm();
  ModelSpec spec;
  Plan plan;
  MeshComms comms;
  Stream stream;
  ParamStore params;
  Transformer model;
  std::vector<int32_t> ids, labels;
  std::vector<int32_t> starts;                     // of documents: two or three in a sequence
  std::vector<std::vector<int32_t>> choices;       // of each MoE layer
  std::vector<std::vector<int32_t>> best_choices;  // where the loss counts the best scores
  int64_t valid = 0;
  AuxLosses aux;
};

// What one pass leaves.
struct Outcome {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  std::vector<double> statistics;
};

inline Outcome run_once(SmallModel& m) {
  m.params.zero_gradients(m.stream);
  Outcome out;
  out.loss = m.loss(false, true);
  out.statistics = m.model.statistics();
  for (const Parameter& p : m.params.all())
    if (p.row.trained) out.gradients.emplace_back(p.grad.as<float>(), p.grad.as<float>() + p.grad.numel());
  return out;
}

}  // namespace mw::test
