#include "ops/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "support/op_case.h"

namespace mw::test {
namespace {

template <class T>
TensorView view_of(DeviceVector<T>& values, std::initializer_list<int64_t> shape) {
  return {values.data(), DTypeOf<T>::value, shape};
}

struct Problem {
  int64_t items = 0, choices = 1, experts = 1, parts = 1;
  bool merge = false, ordered = false;
  std::vector<int32_t> ids, part_of_expert, order;  // order: rows to take, not all of them
  std::vector<float> weights;
};

Problem random_problem(int64_t items, int64_t choices, int64_t experts, int64_t parts, bool merge, bool ordered) {
  std::mt19937 random(static_cast<unsigned>(items * 131 + choices * 7 + experts + parts * 3));
  const auto draw = [&](int64_t least, int64_t most) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(least, most)(random));
  };
  Problem p{items, choices, experts, parts, merge, ordered, {}, {}, {}, {}};
  for (int64_t e = 0; e < experts; ++e) p.part_of_expert.push_back(draw(-1, parts - 1));
  for (int64_t i = 0; i < items * choices; ++i) {
    p.ids.push_back(draw(0, 4) == 0 ? -1 : draw(0, experts - 1));
    p.weights.push_back(static_cast<float>(draw(1, 1000)) / 8);
  }
  p.order.resize(static_cast<size_t>(items));
  std::iota(p.order.begin(), p.order.end(), 0);
  if (!ordered) return p;
  std::shuffle(p.order.begin(), p.order.end(), random);
  p.order.resize(static_cast<size_t>(items - items / 4));
  return p;
}

int32_t part_of(const Problem& p, int64_t choice) {
  const int32_t expert = p.ids[static_cast<size_t>(choice)];
  return expert < 0 ? -1 : p.part_of_expert[static_cast<size_t>(expert)];
}

// The leading choices of all units, by definition.
std::vector<int64_t> leads_of(const Problem& p, std::vector<int64_t>& counts) {
  std::vector<int64_t> leads;
  counts.assign(static_cast<size_t>(p.parts), 0);
  for (int32_t part = 0; part < p.parts; ++part)
    for (const int64_t row : p.order)
      for (int64_t k = 0; k < p.choices; ++k) {
        if (part_of(p, row * p.choices + k) != part) continue;
        leads.push_back(row * p.choices + k);
        ++counts[static_cast<size_t>(part)];
        if (p.merge) break;
      }
  return leads;
}

void expect_units(const Problem& p) {
  std::vector<int64_t> counts;
  const std::vector<int64_t> leads = leads_of(p, counts);
  const auto units = std::ssize(leads);
  const int64_t choices = p.items * p.choices, width = p.merge ? p.choices : 1;
  TestStream test(3);
  DeviceVector<int32_t> ids(p.ids.begin(), p.ids.end()), order(p.order.begin(), p.order.end()),
      items_of(static_cast<size_t>(units), -7), led_by(items_of), unit_of(static_cast<size_t>(choices), -7),
      experts(static_cast<size_t>(units * width), -7);
  DeviceVector<float> weights(p.weights.begin(), p.weights.end()), unit_weights(static_cast<size_t>(units * width), -7);
  DeviceVector<int64_t> counted(static_cast<size_t>(p.parts + p.experts), -7);
  const TensorView all = view_of(ids, {p.items, p.choices});
  sort_units(test.stream, all, p.ordered ? view_of(order, {std::ssize(p.order)}) : TensorView{}, p.part_of_expert,
             p.parts, p.merge,
             {view_of(items_of, {units}), view_of(led_by, {units}), view_of(unit_of, {p.items, p.choices})});
  std::vector<int32_t> own(static_cast<size_t>(p.experts));  // each expert is a part of its own
  std::iota(own.begin(), own.end(), 0);
  const std::array<UnitParts, 2> divisions = {{{p.part_of_expert, p.parts, p.merge}, {own, p.experts, false}}};
  if (!p.ordered) count_units(test.stream, all, divisions, view_of(counted, {p.parts + p.experts}));
  unit_choices(test.stream, all, view_of(weights, {p.items, p.choices}), view_of(led_by, {units}), p.part_of_expert,
               p.merge, view_of(experts, {units, width}), view_of(unit_weights, {units, width}));
  wait_for_device();
  std::vector<int32_t> expected_units(static_cast<size_t>(choices), -7);
  for (const int64_t row : p.order) std::fill_n(expected_units.begin() + row * p.choices, p.choices, -1);
  for (int64_t u = 0; u < units; ++u) {
    const int64_t lead = leads[static_cast<size_t>(u)], row = lead / p.choices;
    ASSERT_EQ(led_by[static_cast<size_t>(u)], lead);
    ASSERT_EQ(items_of[static_cast<size_t>(u)], row);
    expected_units[static_cast<size_t>(lead)] = static_cast<int32_t>(u);
    for (int64_t k = 0; k < width; ++k) {
      const int64_t choice = p.merge ? row * p.choices + k : lead;
      const bool travels = part_of(p, choice) == part_of(p, lead);
      const auto at = static_cast<size_t>(u * width + k);
      ASSERT_EQ(experts[at], travels ? p.ids[static_cast<size_t>(choice)] : -1);
      ASSERT_EQ(unit_weights[at], travels ? p.weights[static_cast<size_t>(choice)] : 0.0f);
    }
  }
  EXPECT_EQ((std::vector<int32_t>(unit_of.begin(), unit_of.end())), expected_units);
  if (p.ordered) return;
  for (int64_t e = 0; e < p.experts; ++e) counts.push_back(std::count(p.ids.begin(), p.ids.end(), e));
  EXPECT_EQ((std::vector<int64_t>(counted.begin(), counted.end())), counts);
}

TEST(Units, GoToEachPartOnceInTheOrderOfItems) {
  for (const bool merge : {false, true})
    for (const bool ordered : {false, true})
      for (const auto& [items, choices, experts, parts] : std::vector<std::array<int64_t, 4>>{{0, 3, 4, 2},
                                                                                              {1, 1, 1, 1},
                                                                                              {5, 3, 6, 3},
                                                                                              {37, 8, 16, 5},
                                                                                              {300, 8, 256, 32},
                                                                                              {5000, 4, 60, 9},
                                                                                              {3000, 1, 40, 300},
                                                                                              {400, 8, 256, 5000}}) {
        SCOPED_TRACE(fmt::format("{} items x {}, {} experts in {} parts, {}{}", items, choices, experts, parts,
                                 merge ? "merged" : "apart", ordered ? ", ordered" : ""));
        expect_units(random_problem(items, choices, experts, parts, merge, ordered));
      }
}

TEST(Units, NoneWhereNoExpertIsChosen) {
  Problem p = random_problem(9, 4, 8, 3, true, false);
  std::fill(p.ids.begin(), p.ids.end(), -1);
  expect_units(p);
}

TEST(Units, RefuseTablesThatDoNotFit) {
  TestStream test;
  DeviceVector<int32_t> ids{0, 1, 1, 0}, table(4), leads(4), numbers_of_units(4), small(3);
  const std::vector<int32_t> parts = {0, 1};
  const TensorView all = view_of(ids, {2, 2});
  const auto sort = [&](TensorView items, TensorView units) {
    sort_units(test.stream, all, {}, parts, 2, false, {items, view_of(leads, {4}), units});
  };
  const TensorView units = view_of(numbers_of_units, {2, 2});
  sort(view_of(table, {4}), units);
  EXPECT_THROW(sort(view_of(table, {4}), view_of(small, {3})), Error);
  DeviceVector<float> numbers(4);
  EXPECT_THROW(sort(view_of(numbers, {4}), units), Error);
  EXPECT_THROW(unit_choices(test.stream, all, {}, view_of(table, {4}), parts, false, view_of(table, {2, 2}), {}),
               Error);
}

}  // namespace
}  // namespace mw::test
