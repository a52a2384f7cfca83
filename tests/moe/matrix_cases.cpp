#include "moe/matrix_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "layout/shares.h"
#include "support/row_bits.h"

namespace mw::test {
namespace {

constexpr int64_t kSequence = 4;

// Sums of some hundred floats in another order, relative to the norm of all.
constexpr double kSumBound = 2e-6;

int64_t experts_of(const MatrixCase& c) { return std::max(7, c.ranks + 3); }

bool has_slices(std::string_view transport) { return transport == "gather_tokens"; }

// Equal, all different, or one feature on the last rank.
ExpertPlacement slices_of(const MatrixCase& c) {
  std::vector<int64_t> weights(static_cast<size_t>(c.ranks), c.homes == Homes::none_on_last ? 100 : 1);
  if (c.homes == Homes::scattered) std::iota(weights.begin(), weights.end(), 1);
  if (c.homes == Homes::none_on_last) weights.back() = 1;
  return make_sliced_placement(experts_of(c), divide_by_shares(TestLayer::kExpertWidth, weights));
}

ExpertPlacement homes_of(const MatrixCase& c) {
  if (has_slices(c.transport)) return slices_of(c);
  const int64_t experts = experts_of(c);
  if (c.homes == Homes::blocks) return make_block_placement(experts, c.ranks);
  ExpertPlacement placement;
  placement.ep = c.ranks;
  const int used = c.homes == Homes::none_on_last ? c.ranks - 1 : c.ranks;
  std::vector<int> slots(static_cast<size_t>(c.ranks));
  for (int64_t e = 0; e < experts; ++e) {
    const auto rank = static_cast<int>(e < used ? used - 1 - e : e * e % used);  // each has one, some more
    placement.homes.push_back({ExpertHome{rank, slots[static_cast<size_t>(rank)]++}});
  }
  validate(placement);
  return placement;
}

// With replicas of other experts behind the homes of each rank; of some experts several.
ExpertPlacement placement_of(const MatrixCase& c) {
  ExpertPlacement placement = homes_of(c);
  const std::vector<int64_t> offsets = placement.rank_offsets();
  for (int rank = 0; rank < c.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    auto slot = static_cast<int>(offsets[r + 1] - offsets[r]);
    for (int64_t i = 0, left = c.replicas; i < experts_of(c) && left > 0; ++i) {
      std::vector<ExpertHome>& copies = placement.homes[static_cast<size_t>((2 * rank + i) % experts_of(c))];
      if (copies.front().ep_rank == rank) continue;
      copies.push_back({rank, slot++});
      --left;
    }
  }
  validate(placement);
  return placement;
}

bool is_by_node(std::string_view transport) { return transport == "halo" || transport == "bypass"; }

// Whether each expert gets all its rows at once, in the order of the reference.
bool keeps_order(const MatrixCase& c) {
  return std::string_view(c.transport) == "flat" || (is_by_node(c.transport) && c.row_chunks == 1);
}

NodeMap nodes_of(const MatrixCase& c) {
  NodeMap nodes;
  if (c.nodes == Nodes::pairs) nodes.ranks_per_node = 2;
  if (c.nodes == Nodes::threes) nodes.ranks_per_node = 3;
  if (c.nodes == Nodes::apart) nodes.ranks_per_node = 1;
  if (c.nodes == Nodes::interleaved)
    for (int r = 0; r < c.ranks; ++r) nodes.node_of_rank.push_back(r % 5 % 2);
  return nodes;
}

LayerOptions options_of(const MatrixCase& c) {
  LayerOptions o;
  o.seq_len = kSequence;
  o.experts = experts_of(c);
  o.top_k = c.top_k;
  o.shared_width = c.shared ? 20 : 0;
  o.exact = true;
  o.activation = c.activation;
  o.moe.capacity_factor = c.capacity ? 1.0 : 0.0;
  return o;
}

LayerOptions options_of_rank(const MatrixCase& c, int rank) {
  LayerOptions o = options_of(c);
  const std::vector<int64_t> tokens = tokens_of_ranks(c);
  o.tokens = *std::max_element(tokens.begin(), tokens.end());
  o.transport = c.transport;
  o.row_chunks = c.row_chunks;
  o.placement = placement_of(c);
  o.nodes = nodes_of(c);
  o.exchange_stream = c.exchange_stream;
  o.moe.recompute = c.recompute;
  o.moe.defer_up = c.defer_up;
  int last = c.ranks - 1;
  while (last > 0 && tokens[static_cast<size_t>(last)] == 0) --last;
  o.moe.drop_one_row = c.drop_one_row && rank == last;
  return o;
}

double error_of_values(std::span<const float> got, std::span<const float> expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2.0);
    norm += std::pow(static_cast<double>(expected[i]), 2.0);
  }
  return std::sqrt(error) / std::max(std::sqrt(norm), 1e-30);
}

// Gathers what differs.
class Differences {
 public:
  // To the bit, or within kSumBound.
  void compare(const std::string& name, std::span<const float> got, std::span<const float> expected, bool same_bits) {
    const bool same = std::equal(got.begin(), got.end(), expected.begin(), expected.end());
    const double error = got.size() == expected.size() ? error_of_values(got, expected) : 1;
    if (!same && (same_bits || !(error <= kSumBound))) note(name, fmt::format("{:.1e} off", error));
  }
  template <class T>
  void equal(const std::string& name, const T& got, const T& expected) {
    if (got != expected) note(name, "differs");
  }
  const std::string& text() const { return text_; }

 private:
  void note(const std::string& name, const std::string& what) { text_ += fmt::format("{}: {}; ", name, what); }
  std::string text_;
};

std::span<const float> part(const std::vector<float>& whole, int64_t begin, int64_t count) {
  return std::span(whole).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

// What a rank holds of a tensor of all experts: up [.., F, D] or down [.., F].
std::vector<float> slice_of(const std::vector<float>& all, const ExpertPlacement& placement, int rank, bool is_up) {
  const int64_t inner = is_up ? TestLayer::kWidth : 1, width = TestLayer::kExpertWidth,
                begin = std::accumulate(placement.widths.begin(), placement.widths.begin() + rank, int64_t{0}),
                count = placement.widths[static_cast<size_t>(rank)];
  std::vector<float> own;
  for (int64_t at = 0; at < std::ssize(all); at += width * inner) {
    const std::span<const float> features = part(all, at + begin * inner, count * inner);
    own.insert(own.end(), features.begin(), features.end());
  }
  return own;
}

// Of every expert that this rank holds.
void compare_experts(const MatrixCase& c, const TestLayer::Outcome& got, const TestLayer::Outcome& expected, int rank,
                     Differences& found) {
  const ExpertPlacement placement = placement_of(c);
  const std::vector<int> own = placement.experts_of(rank);
  for (const char* name : {"up", "down"}) {
    std::vector<float> all = expected.gradients.at(name);
    if (placement.is_sliced()) all = slice_of(all, placement, rank, std::string_view(name) == "up");
    const int64_t size = static_cast<int64_t>(all.size()) / experts_of(c);
    for (size_t slot = 0; slot < own.size(); ++slot)
      found.compare(fmt::format("gradient of {} of expert {}", name, own[slot]),
                    part(got.gradients.at(name), static_cast<int64_t>(slot) * size, size),
                    part(all, own[slot] * size, size), keeps_order(c) && c.replicas == 0);
  }
}

// Of the tokens of this rank.
void compare_tokens(const MatrixCase& c, const TestLayer::Outcome& got, const TestLayer::Outcome& expected,
                    int64_t begin, int64_t count, Differences& found) {
  constexpr int64_t kWidth = TestLayer::kWidth;
  const bool same_outputs = (c.activation == Activation::relu || (keeps_order(c) && !c.shared)) &&
                            (std::string_view(c.transport) != "bypass" || c.top_k == 1) && !has_slices(c.transport) &&
                            (c.replicas == 0 || rows_have_same_bits());
  found.compare("out", got.out, part(expected.out, begin * kWidth, count * kWidth), same_outputs);
  found.compare("d_x", got.d_x, part(expected.d_x, begin * kWidth, count * kWidth),
                same_outputs && keeps_order(c) && c.top_k == 1);
}

// What all ranks hold the same part of: sums over ranks.
void compare_sums(const MatrixCase& c, const TestLayer::Outcome& got, const TestLayer::Outcome& expected, Comm& ep,
                  Differences& found) {
  for (const char* name : {"router", "shared_up", "shared_down"}) {
    if (expected.gradients.count(name) == 0) continue;
    // With one choice it is the rounding noise of gate gradients, which slices sum in another order.
    if (std::string_view(name) == "router" && has_slices(c.transport) && c.top_k == 1) continue;
    std::vector<float> sum = got.gradients.at(name);
    ep.all_reduce_sum(std::span(sum));
    found.compare(std::string("gradient of ") + name, sum, expected.gradients.at(name), false);
  }
  std::vector<double> loads = got.statistics.counts;
  loads.push_back(got.statistics.dropped);
  ep.all_reduce_sum(std::span(loads));
  std::vector<double> expected_loads = expected.statistics.counts;
  expected_loads.push_back(expected.statistics.dropped);
  found.equal("loads", loads, expected_loads);
}

}  // namespace

std::string describe(const MatrixCase& c) {
  constexpr const char* kTokens[] = {"uneven tokens", "a rank without tokens", "tokens of one expert"};
  constexpr const char* kHomes[] = {"blocks", "scattered experts", "a rank without experts"};
  constexpr const char* kNodes[] = {"one node", "two ranks a node", "three ranks a node", "interleaved nodes",
                                    "one rank a node"};
  return fmt::format("{} ranks, {}, {}, {} chunks, top {}, {}, {}{}{}{}{}, {}, recompute {}{}{}, {} replicas", c.ranks,
                     c.transport, kNodes[static_cast<int>(c.nodes)], c.row_chunks, c.top_k,
                     kTokens[static_cast<int>(c.tokens)], kHomes[static_cast<int>(c.homes)], c.shared ? ", shared" : "",
                     c.capacity ? ", capacity" : "", c.defer_up ? ", deferred" : "",
                     c.exchange_stream ? ", a stream for exchanges" : "",
                     c.activation == Activation::relu ? "relu" : "swiglu", c.recompute.logits ? "l" : "",
                     c.recompute.dispatched ? "d" : "", c.recompute.hidden ? "h" : "", c.replicas);
}

std::vector<MatrixCase> matrix_cases(int ranks, const char* transport, int stride, int replicas) {
  constexpr MoeRecompute kRecompute[] = {{}, {false, false, true}, {false, true, true}, {true, true, true}};
  constexpr int kModes = std::size(kRecompute) + 1;  // the last defers
  const int homes = ranks == 1 ? 1 : 3, nodes = is_by_node(transport) ? 5 : 1, streams = is_by_node(transport) ? 2 : 1;
  std::vector<MatrixCase> cases;
  for (int i = 0; i < 3 * homes * nodes * streams * 2 * 2 * 2 * 2 * 2 * kModes; i += stride) {
    int left = i;
    const auto pick = [&left](int values) { return std::exchange(left, left / values) % values; };
    MatrixCase c;
    c.ranks = ranks;
    c.transport = transport;
    c.replicas = replicas;
    const int mode = pick(kModes);
    c.defer_up = mode == kModes - 1;
    if (!c.defer_up) c.recompute = kRecompute[mode];
    c.row_chunks = pick(2) == 0 ? 1 : 3;
    c.capacity = pick(2) == 1;
    c.shared = pick(2) == 1;
    c.top_k = pick(2) == 0 ? 1 : 3;
    c.activation = pick(2) == 0 ? Activation::relu : Activation::swiglu;
    c.exchange_stream = pick(streams) == 1;
    c.nodes = static_cast<Nodes>(pick(nodes));
    c.homes = static_cast<Homes>(pick(homes));
    c.tokens = static_cast<Tokens>(pick(3));
    cases.push_back(c);
  }
  return cases;
}

std::vector<int64_t> tokens_of_ranks(const MatrixCase& c) {
  std::vector<int64_t> tokens;
  for (int r = 0; r < c.ranks; ++r)
    tokens.push_back(c.tokens == Tokens::none_on_one_rank && r == c.ranks / 2 ? 0 : kSequence * (1 + (r + 1) % 3));
  return tokens;
}

std::string reference_name(const MatrixCase& c) {
  return fmt::format("{} {} {} {} {} {}", c.ranks, c.top_k, static_cast<int>(c.tokens), c.shared, c.capacity,
                     static_cast<int>(c.activation));
}

LayerInput input_of(const MatrixCase& c) {
  const std::vector<int64_t> tokens = tokens_of_ranks(c);
  LayerInput input = TestLayer::random_input(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
  if (c.tokens == Tokens::one_expert)  // and, with several choices, two more
    for (int64_t t = 0; t < input.tokens(); ++t)
      for (int64_t k = 0; k < c.top_k; ++k) input.ids.push_back(static_cast<int32_t>(2 + 2 * k));
  for (CaseTensor* tensor : {&input.x, &input.base, &input.d_out})
    for (float& value : tensor->values) value = std::round(value * 4) / 4;
  if (c.top_k == 1) return input;
  input.aux.z_scale = 0.01f;
  for (int64_t e = 0; e < experts_of(c); ++e) input.aux.d_prob.push_back(0.01f * static_cast<float>(e));
  return input;
}

TestLayer::Outcome reference_of(const MatrixCase& c) {
  const LayerInput input = input_of(c);
  LayerOptions o = options_of(c);
  o.tokens = input.tokens();
  return TestLayer(o).run(input);
}

std::string differences(const MatrixCase& c, const TestLayer::Outcome& reference, Comm& ep, Stream& stream) {
  const std::vector<int64_t> tokens = tokens_of_ranks(c);
  const auto own = static_cast<size_t>(ep.rank());
  const int64_t begin = std::accumulate(tokens.begin(), tokens.begin() + ep.rank(), int64_t{0});
  const TestLayer::Outcome got =
      TestLayer(options_of_rank(c, ep.rank()), ep, stream).run(input_of(c).slice(begin, tokens[own]));
  Differences found;
  compare_tokens(c, got, reference, begin, tokens[own], found);
  compare_experts(c, got, reference, ep.rank(), found);
  compare_sums(c, got, reference, ep, found);
  return found.text();
}

}  // namespace mw::test
