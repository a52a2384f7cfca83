// Cases of the transport matrix, and the comparison of one with a single process that has all tokens and all experts.
#pragma once

#include <string>
#include <vector>

#include "moe/layer_helpers.h"

namespace mw::test {

enum class Tokens { uneven, none_on_one_rank, one_expert };
enum class Homes { blocks, scattered, none_on_last };  // of slices: equal, all different, one feature on the last rank
enum class Nodes { one, pairs, threes, interleaved, apart };  // ranks that share a node; the last node may have fewer

struct MatrixCase {
  int ranks = 2;
  const char* transport = "flat";
  int64_t row_chunks = 1, top_k = 3;
  Tokens tokens = Tokens::uneven;
  Homes homes = Homes::blocks;
  Nodes nodes = Nodes::one;
  int replicas = 0;  // on every rank
  bool shared = true, capacity = false, defer_up = false, exchange_stream = false;
  MoeRecompute recompute;
  Activation activation = Activation::swiglu;
  bool drop_one_row = false;  // the fault, on the last rank that has tokens
};

std::string describe(const MatrixCase& c);

// Of all combinations each `stride`-th: with a stride that has no factor in common with their number, every two values
// of two dimensions meet in some case as long as there are some forty.
std::vector<MatrixCase> matrix_cases(int ranks, const char* transport, int stride, int replicas = 0);

// Tokens of each rank.
std::vector<int64_t> tokens_of_ranks(const MatrixCase& c);

// The layer over one process, on the tokens of all ranks in their order. Cases that differ in nothing that it sees
// share one: `reference_name` tells them apart.
std::string reference_name(const MatrixCase& c);
LayerInput input_of(const MatrixCase& c);
TestLayer::Outcome reference_of(const MatrixCase& c);

// Runs one rank's part and says where it differs, by name and by how much; "" where it does not. Collective.
// All operands are small multiples of powers of two, so that sums of products are exact in any order and the bits of
// router logits, of expert outputs under ReLU and of their gradients by weights and input depend on nothing else. Equal
// to the bit are therefore
// - outputs, where the activation is ReLU; else where experts get their rows in the order of the reference (flat, and
//   halo and bypass in one chunk) and no shared expert sees the tokens in panels of another height; not under bypass,
//   where a token has several choices: it sums them by rank and node; not under gather_tokens, which sums over slices;
// - gradients of experts, where each expert gets the same rows in the same order, and has no replicas;
// - the gradient of the input, where outputs and the rows' order are the same and with one choice, which leaves the
//   router none.
// All else is summed in another order: equal within kSumBound.
std::string differences(const MatrixCase& c, const TestLayer::Outcome& reference, Comm& ep, Stream& stream);

}  // namespace mw::test
