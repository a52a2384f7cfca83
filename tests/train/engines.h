// Engines of random layouts over ranks that are threads, and comparisons of their states.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "engine/step.h"
#include "support/random_layout.h"
#include "train/helpers.h"

namespace mw::test {

inline std::unique_ptr<Engine> make_engine(const RandomLayout& layout, Comm& world) {
  return std::make_unique<Engine>(build_native_model(layout.run.native), layout.run, world, 1, NodePlace{},
                                  layout.placements);
}

inline double take_step(Engine& engine, int64_t step) {
  const StepStats stats = accumulate_gradients(engine, stage(engine, random_batches(engine.plan)));
  apply_update(engine, stats, {1e-3, step});
  return stats.total_loss;
}

// Two updates from random weights.
inline std::unique_ptr<Engine> trained_engine(const RandomLayout& layout, Comm& world) {
  std::unique_ptr<Engine> engine = make_engine(layout, world);
  engine->params.initialise(3, engine->stream);
  refresh_weights(*engine);
  take_step(*engine, 1);
  take_step(*engine, 2);
  return engine;
}

inline void expect_same_bits(const TensorView& a, const TensorView& b, const std::string& what) {
  ASSERT_EQ(a.data == nullptr, b.data == nullptr) << what;
  if (a.data == nullptr) return;  // no such tensor
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << what;
}

// Master weights, moments and packed forms of the parameters that a rank holds.
inline void expect_same_states(const Engine& a, const Engine& b) {
  ASSERT_EQ(a.params.all().size(), b.params.all().size());
  for (size_t i = 0; i < a.params.all().size(); ++i) {
    const Parameter &x = a.params.all()[i], &y = b.params.all()[i];
    for (const auto field : {&Parameter::master, &Parameter::rest, &Parameter::adam_m, &Parameter::adam_v})
      expect_same_bits(x.*field, y.*field, x.row.name);
    for (size_t w = 0; w < x.weights.size(); ++w) {
      expect_same_bits(x.weights[w].packed_forward, y.weights[w].packed_forward, x.row.name + " packed");
      expect_same_bits(x.weights[w].packed_backward, y.weights[w].packed_backward, x.row.name + " packed");
    }
  }
}

inline RandomLayout layout_of(int64_t ep, int64_t zero, SharedPlacements placements) {
  RandomLayout layout{small_run(), std::move(placements), ""};
  layout.run.mesh.ep = ep;
  layout.run.mesh.zero = zero;
  return layout;
}

}  // namespace mw::test
