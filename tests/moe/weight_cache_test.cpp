#include "moe/weight_cache.h"

#include "formats/helpers.h"

namespace mw::test {
namespace {

// Three slots of 64 bytes, and uses of a layer of two pieces.
struct Slots {
  std::vector<std::byte> memory = std::vector<std::byte>(192);
  WeightCache cache{TensorView(memory.data(), DType::u8, {192}), WeightSlots{3, 8, 64}};
  std::vector<WeightUse> step = plan_weight_uses({{0, false}, {0, true}}, {{2, false, 64}}, 3),
                         forward = plan_weight_uses({{0, false}}, {{2, false, 64}}, 3);
};

TEST(WeightCache, GivesTheUsesOverAndOver) {
  Slots slots;
  slots.cache.follow(slots.step);
  for (int round = 0; round < 2; ++round) {
    for (const WeightUse& use : slots.step) EXPECT_EQ(&slots.cache.next(use.layer, use.backward, use.piece), &use);
    slots.cache.follow(slots.forward);
    for (const WeightUse& use : slots.forward) EXPECT_EQ(&slots.cache.next(use.layer, use.backward, use.piece), &use);
    slots.cache.follow(slots.step);
  }
  EXPECT_EQ(slots.cache.slot(2), slots.memory.data() + 128);
}

TEST(WeightCache, RefusesWhatIsNotDue) {
  Slots slots;
  slots.cache.follow(slots.step);
  for (const auto& [layer, backward, piece] :
       {std::tuple(1, false, 0), std::tuple(0, true, 0), std::tuple(0, false, 1)})
    error_of([&, layer = layer, backward = backward, piece = piece] { slots.cache.next(layer, backward, piece); },
             Exit::internal);
  slots.cache.next(0, false, 0);
  slots.cache.follow(slots.step);  // nothing new
  error_of([&] { slots.cache.follow(slots.forward); }, Exit::internal);
  error_of(
      [&] {
        WeightCache(TensorView(slots.memory.data(), DType::u8, {191}), WeightSlots{3, 8, 64});
      },
      Exit::internal);
}

}  // namespace
}  // namespace mw::test
