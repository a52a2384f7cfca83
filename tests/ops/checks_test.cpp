// Operands that break an operator's contract are refused, whatever the backend.
#include "ops/checks.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "support/op_case.h"

namespace mw::test {
namespace {

using Views = std::vector<TensorView>;

using enum DType;

struct Spec {
  DType dtype;
  std::vector<int64_t> shape;
};

// Operands of zeros: small, and valid as ids, rows and labels too.
class Zeros {
 public:
  TensorView make(DType dtype, const std::vector<int64_t>& shape) {
    TensorView view(nullptr, dtype, shape);
    memory_.emplace_back(static_cast<size_t>(view.bytes()));
    view.data = memory_.back().data();
    return view;
  }
  Views make(const std::vector<Spec>& specs) {
    Views views;
    for (const Spec& spec : specs) views.push_back(make(spec.dtype, spec.shape));
    return views;
  }

 private:
  std::vector<DeviceVector<std::byte>> memory_;
};

// An operator on operands that it takes.
struct Call {
  const char* name;
  std::vector<Spec> operands;
  std::function<void(Stream&, const Views&)> run;
};

const AttentionShape kAttention = {
    .sequences = 1, .seq_len = 3, .heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 5};
const RouterRule kRouter = {.experts = 4, .top_k = 2};
const std::vector<int64_t> kOffsets = {0, 2, 3};       // of two experts
const std::vector<int32_t> kPositions = {0, 1, 2, 3};  // of four experts
Weight weight_of(TensorView values) { return {4, 5, values, {}, {}}; }

// Ids and weights, then the views of a layout.
const std::vector<Spec> kLayoutOperands = {{i32, {3, 2}}, {f32, {3, 2}}, {i32, {6}}, {i32, {6}},
                                           {f32, {6}},    {i32, {3, 2}}, {i64, {4}}};
TokenLayout layout_of(const Views& v) { return {3, 2, 4, 0, 0, v[2], v[3], v[4], v[5], v[6]}; }

std::vector<Call> all_calls() {
  return {
      {"convert", {{f32, {4}}, {f32, {4}}}, [](Stream& s, const Views& v) { convert(s, v[0], v[1]); }},
      {"add", {{f32, {4}}, {f32, {4}}, {f32, {4}}}, [](Stream& s, const Views& v) { add(s, v[0], v[1], v[2]); }},
      {"clamp", {{f32, {4}}, {f32, {4}}}, [](Stream& s, const Views& v) { clamp(s, v[0], 1.0f, v[1]); }},
      {"clamp_backward",
       {{f32, {4}}, {f32, {4}}},
       [](Stream& s, const Views& v) { clamp_backward(s, v[0], 1.0f, v[1]); }},
      {"rms_norm",
       {{f32, {3, 4}}, {f32, {4}}, {f32, {3, 4}}, {f32, {3}}},
       [](Stream& s, const Views& v) { rms_norm(s, v[0], v[1], 1e-5f, v[2], v[3]); }},
      {"add_rms_norm",
       {{f32, {3, 4}}, {f32, {3, 4}}, {f32, {4}}, {f32, {3, 4}}, {f32, {3, 4}}, {f32, {3}}},
       [](Stream& s, const Views& v) { add_rms_norm(s, v[0], v[1], v[2], 1e-5f, v[3], v[4], v[5]); }},
      {"rms_norm_apply",
       {{f32, {3, 4}}, {f32, {4}}, {f32, {3}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) { rms_norm_apply(s, v[0], v[1], v[2], v[3]); }},
      {"rms_norm_backward",
       {{f32, {3, 4}}, {f32, {4}}, {f32, {3}}, {f32, {3, 4}}, {f32, {3, 4}}, {f32, {3, 4}}, {f32, {4}}},
       [](Stream& s, const Views& v) { rms_norm_backward(s, v[0], v[1], v[2], v[3], v[4], v[5], v[6]); }},
      {"rms_norm of parts",
       {{f32, {3, 4}}, {f32, {4}}, {f32, {3, 4}}, {f32, {3}}, {f32, {3}}},
       [](Stream& s, const Views& v) {
         rms_norm(s, v[0], v[1], 1e-5f, v[2], v[3], {v[4], 8});
       }},
      {"rms_norm_backward of parts",
       {{f32, {3, 4}}, {f32, {4}}, {f32, {3}}, {f32, {3, 4}}, {f32, {3, 4}}, {f32, {4}}, {f32, {3}}},
       [](Stream& s, const Views& v) {
         rms_norm_backward(s, v[0], v[1], v[2], v[3], {}, v[4], v[5], {v[6], 8});
       }},
      {"row_products",
       {{f32, {3, 4}}, {f32, {3, 4}}, {f32, {4}}, {f32, {3}}},
       [](Stream& s, const Views& v) { row_products(s, v[0], v[1], v[2], v[3]); }},
      {"add_bias", {{f32, {3, 4}}, {f32, {4}}}, [](Stream& s, const Views& v) { add_bias(s, v[0], v[1]); }},
      {"bias_backward", {{bf16, {3, 4}}, {f32, {4}}}, [](Stream& s, const Views& v) { bias_backward(s, v[0], v[1]); }},
      {"gate_backward", {{f32, {3}}, {f32, {3}}}, [](Stream& s, const Views& v) { gate_backward(s, v[0], v[1]); }},
      {"first_keys_of_window",
       {{i32, {3}}, {i32, {3}}},
       [](Stream& s, const Views& v) { first_keys_of_window(s, 3, 2, v[0], v[1]); }},
      {"norm_rope",
       {{f32, {3, 2, 4}}, {f32, {4}}, {f32, {6}}, {f32, {3, 2}}, {f32, {3, 2}}, {f32, {3, 2, 4}}, {f32, {4}}},
       [](Stream& s, const Views& v) {
         const Rotation by{v[3], v[4]};
         norm_rope(s, v[0], v[1], 1e-5f, by, v[5], v[2]);
         norm_rope_apply(s, v[0], v[1], v[2], by, v[5]);
         norm_rope_backward(s, v[0], v[1], v[2], by, v[5], v[6]);
       }},
      {"rope",
       {{f32, {3, 2, 4}}, {f32, {3, 2}}, {f32, {3, 2}}, {f32, {3, 2, 4}}},
       [](Stream& s, const Views& v) { rope(s, v[0], v[1], v[2], RopeDirection::forward, v[3]); }},
      {"copy_columns",
       {{f32, {3, 4}}, {f32, {3, 2, 4}}},
       [](Stream& s, const Views& v) {
         copy_columns(s, {v[0], 2}, {v[1], 2}, 2);
       }},
      {"sum_columns",
       {{f32, {3, 2, 4}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) {
         sum_columns(s, {v[0], 2}, {v[1], 2}, 2);
       }},
      {"activate",
       {{f32, {3, 2, 4}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) { activate(s, Activation::swiglu, v[0], v[1]); }},
      {"activate_backward",
       {{f32, {3, 2, 4}}, {f32, {3, 4}}, {f32, {3}}, {f32, {3, 2, 4}}, {f32, {3, 4}}, {f32, {3}}},
       [](Stream& s, const Views& v) { activate_backward(s, Activation::swiglu, v[0], v[1], v[2], v[3], v[4], v[5]); }},
      {"embed",
       {{f32, {5, 4}}, {i32, {3}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) {
         embed(s, v[0], {0, 5}, v[1], v[2]);
       }},
      {"embed_backward",
       {{f32, {3, 4}}, {i32, {3}}, {f32, {5, 4}}},
       [](Stream& s, const Views& v) {
         embed_backward(s, v[0], {0, 5}, v[1], v[2]);
       }},
      {"cross_entropy",
       {{f32, {3, 4}}, {i32, {3}}, {f32, {3}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) { cross_entropy(s, v[0], v[1], 1.0f, v[2], v[3]); }},
      {"softmax_statistics and cross_entropy_of_part",
       {{f32, {3, 4}}, {i32, {3}}, {f32, {3, 3}}, {f32, {3}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) {
         softmax_statistics(s, v[0], {2, 6}, v[1], v[2]);
         cross_entropy_of_part(s, v[0], {2, 6}, v[1], v[2].reshape({1, 3, 3}), 1.0f, v[3], v[4]);
       }},
      {"attention",
       {{f32, {3, 2, 4}}, {f32, {3, 1, 4}}, {f32, {3, 1, 5}}, {f32, {3, 2, 5}}, {f32, {2, 3}}},
       [](Stream& s, const Views& v) { attention(s, kAttention, v[0], v[1], v[2], v[3], v[4]); }},
      {"attention_backward",
       {{f32, {3, 2, 4}},
        {f32, {3, 1, 4}},
        {f32, {3, 1, 5}},
        {f32, {3, 2, 5}},
        {f32, {2, 3}},
        {f32, {3, 2, 5}},
        {f32, {3, 2, 4}},
        {f32, {3, 1, 4}},
        {f32, {3, 1, 5}},
        {f32, {2, 3}}},
       [](Stream& s, const Views& v) {
         attention_backward(s, kAttention, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], {}, v[9]);
       }},
      {"largest_logits",
       {{f32, {3, 2, 4}}, {f32, {3, 1, 4}}, {f32, {2}}},
       [](Stream& s, const Views& v) { largest_logits(s, kAttention, v[0], v[1], v[2]); }},
      {"add_sinks",
       {{f32, {2}}, {f32, {3, 2, 5}}, {f32, {2, 3}}},
       [](Stream& s, const Views& v) { add_sinks(s, kAttention, v[0], v[1], v[2]); }},
      {"sinks_backward",
       {{f32, {2}}, {f32, {2, 3}}, {f32, {2, 3}}, {f32, {2}}},
       [](Stream& s, const Views& v) { sinks_backward(s, kAttention, f32, v[0], v[1], v[2], v[3]); }},
      {"adamw",
       {{f32, {4}}, {f32, {4}}, {f32, {4}}, {f32, {4}}},
       [](Stream& s, const Views& v) { update_by_adamw(s, {}, 1, 1e-3f, 0.1f, 1.0f, v[0], v[1], v[2], v[3]); }},
      {"scaled_sum",
       {{f32, {4}}, {f32, {4}}, {f32, {4}}},
       [](Stream& s, const Views& v) { scaled_sum(s, 1, v[0], 1, v[1], v[2]); }},
      {"muon_momentum",
       {{f32, {4}}, {f32, {4}}, {f32, {4}}},
       [](Stream& s, const Views& v) { muon_momentum(s, {}, 1, 1, v[0], v[1], v[2]); }},
      {"normalise_matrices",
       {{f32, {2, 2, 3}}, {f32, {2, kNormParts}}, {f32, {2, 2, 3}}},
       [](Stream& s, const Views& v) { normalise_matrices(s, v[0], v[1], v[2]); }},
      {"muon_update", {{f32, {4}}, {f32, {4}}}, [](Stream& s, const Views& v) { muon_update(s, 1, 0, 1, v[0], v[1]); }},
      {"matmul",
       {{f32, {3, 5}}, {f32, {4, 5}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) { matmul(s, v[0], weight_of(v[1]), v[2]); }},
      {"matmul_d_input",
       {{f32, {3, 4}}, {f32, {4, 5}}, {f32, {3, 5}}},
       [](Stream& s, const Views& v) { matmul_d_input(s, v[0], weight_of(v[1]), v[2]); }},
      {"matmul_d_weight",
       {{f32, {3, 4}}, {f32, {3, 5}}, {f32, {4, 5}}},
       [](Stream& s, const Views& v) { matmul_d_weight(s, v[0], v[1], v[2]); }},
      {"mixed_matmul",
       {{bf16, {3, 5}}, {f32, {4, 5}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) { mixed_matmul(s, v[0], weight_of(v[1]), v[2]); }},
      {"mixed_matmul_d_input",
       {{f32, {3, 4}}, {f32, {4, 5}}, {bf16, {3, 5}}},
       [](Stream& s, const Views& v) { mixed_matmul_d_input(s, v[0], weight_of(v[1]), v[2]); }},
      {"mixed_matmul_d_weight",
       {{f32, {3, 4}}, {bf16, {3, 5}}, {f32, {4, 5}}},
       [](Stream& s, const Views& v) { mixed_matmul_d_weight(s, v[0], v[1], v[2]); }},
      {"esmm",
       {{f32, {3, 5}}, {f32, {3, 4}}, {f32, {4, 5}}},
       [](Stream& s, const Views& v) {
         const std::vector<Weight> weights(2, weight_of(v[2]));
         esmm(s, {v[0]}, kOffsets, weights, {v[1]});
       }},
      {"esmm_d_input",
       {{f32, {3, 4}}, {f32, {3, 5}}, {f32, {4, 5}}},
       [](Stream& s, const Views& v) {
         const std::vector<Weight> weights(2, weight_of(v[2]));
         esmm_d_input(s, {v[0]}, kOffsets, weights, {v[1]});
       }},
      {"estmm",
       {{f32, {3, 4}}, {f32, {3, 5}}, {f32, {2, 4, 5}}},
       [](Stream& s, const Views& v) { estmm(s, {v[0]}, {v[1]}, kOffsets, v[2]); }},
      {"ess", {{f32, {3, 4}}, {f32, {2, 4}}}, [](Stream& s, const Views& v) { ess(s, {v[0]}, kOffsets, v[1]); }},
      {"add_expert_bias",
       {{f32, {3, 4}}, {f32, {2, 4}}},
       [](Stream& s, const Views& v) { add_expert_bias(s, {v[0]}, kOffsets, {}, v[1]); }},
      {"expert_bias_products",
       {{f32, {3, 4}}, {f32, {2, 4}}, {f32, {3}}},
       [](Stream& s, const Views& v) { expert_bias_products(s, {v[0]}, kOffsets, {}, v[1], v[2]); }},
      {"esfk",
       {{f32, {3, 4}}, {f32, {3, 5}}, {f32, {3, 5}}, {f32, {2, 4, 5}}, {f32, {2, 4}}, {f32, {4, 5}}},
       [](Stream& s, const Views& v) {
         const std::vector<Weight> weights(2, weight_of(v[5]));
         esfk(s, {v[0]}, {v[1]}, kOffsets, weights, {v[2]}, v[3], Store::accumulate, v[4]);
       }},
      {"route",
       {{f32, {3, 4}}, {f32, {4}}, {i32, {3, 2}}, {f32, {3, 2}}, {f32, {3}}},
       [](Stream& s, const Views& v) { route(s, kRouter, v[0], v[1], false, v[2], v[3], {}, v[4]); }},
      {"route_backward",
       {{f32, {3, 4}}, {i32, {3, 2}}, {f32, {3, 2}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) { route_backward(s, kRouter, v[0], v[1], v[2], {}, 0.0f, v[3]); }},
      {"build_token_layout", kLayoutOperands,
       [](Stream& s, const Views& v) {
         TokenLayout layout = layout_of(v);
         build_token_layout(s, v[0], v[1], {}, kPositions, {}, layout);
       }},
      {"gather_rows",
       {{f32, {3, 4}}, {f32, {2, 4}}},
       [](Stream& s, const Views& v) { gather_rows(s, v[0], nullptr, 0, v[1]); }},
      {"combine_rows",
       {{f32, {6, 4}}, {i32, {3, 2}}, {f32, {3, 2}}, {f32, {3, 4}}, {f32, {3, 4}}},
       [](Stream& s, const Views& v) { combine_rows(s, v[0], v[1], v[2], v[3], v[4]); }},
      {"gather_values",  // whose first operand may have any length
       {{i32, {3, 2}}, {f32, {3, 2}}},
       [](Stream& s, const Views& v) { gather_values(s, v[1], v[0], v[1]); }},
      {"scatter_values",  // whose last operand may be longer
       {{f32, {1}}, {i32, {1}}},
       [](Stream& s, const Views& v) { scatter_values(s, v[0], v[1], v[0]); }},
  };
}

// A rule about something else than one operand: the call keeps it, or breaks it.
struct Rule {
  const char* name;
  std::function<void(Stream&, Zeros&, bool broken)> call;
};

std::vector<Rule> all_rules() {
  return {
      {"AdamW counts steps from 1",
       [](Stream& s, Zeros& z, bool broken) {
         const TensorView x = z.make(f32, {4});
         update_by_adamw(s, {}, broken ? 0 : 1, 1e-3f, 0.1f, 1.0f, x, x, x, x);
       }},
      {"each row has a gate",
       [](Stream& s, Zeros& z, bool broken) {
         gate_rows(s, z.make(f32, {broken ? 2 : 3}), z.make(f32, {3, 4}));
       }},
      {"the position table has a position",
       [](Stream& s, Zeros& z, bool broken) {
         const TensorView x = z.make(f32, {3, 2, 4}), table = z.make(f32, {broken ? 0 : 1, 2});
         rope(s, x, table, table, RopeDirection::forward, x);
       }},
      {"KV heads divide heads",
       [](Stream&, Zeros&, bool broken) {
         AttentionShape shape = kAttention;
         shape.kv_heads = broken ? 3 : 2;
         attention_workspace_bytes(shape, f32, 1, device_kind());
       }},
      {"sequences have a length",
       [](Stream&, Zeros&, bool broken) {
         AttentionShape shape = kAttention;
         shape.seq_len = broken ? -1 : 0;
         attention_workspace_bytes(shape, f32, 1, device_kind());
       }},
      {"heads have a width",
       [](Stream&, Zeros&, bool broken) {
         AttentionShape shape = kAttention;
         shape.value_dim = broken ? 0 : 1;
         attention_workspace_bytes(shape, f32, 1, device_kind());
       }},
      {"weights are packed from as many values",
       [](Stream& s, Zeros& z, bool broken) {
         const TensorView form = z.make(u8, {packed_weight_bytes(4, 5, false)});
         pack_weight(s, {4, 5, z.make(f32, {broken ? 3 : 4, 5}), form, z.make(u8, {form.bytes()})});
       }},
      {"weights are packed from f32",
       [](Stream& s, Zeros& z, bool broken) {
         const TensorView form = z.make(u8, {packed_weight_bytes(4, 5, false)});
         pack_weight(s, {4, 5, z.make(broken ? bf16 : f32, {4, 5}), form, z.make(u8, {form.bytes()})});
       }},
      {"logits in bf16 have gradients in bf16",
       [](Stream& s, Zeros& z, bool broken) {
         const TensorView labels = z.make(i32, {3}), loss = z.make(f32, {3});
         cross_entropy(s, z.make(bf16, {3, 4}), labels, 1.0f, loss, z.make(broken ? f32 : bf16, {3, 4}));
       }},
      {"products keep their rows",
       [](Stream& s, Zeros& z, bool broken) {
         matmul(s, z.make(f32, {3, 5}), weight_of(z.make(f32, {4, 5})), z.make(f32, {broken ? 2 : 3, 4}));
       }},
      {"weight gradients sum over the rows of both",
       [](Stream& s, Zeros& z, bool broken) {
         matmul_d_weight(s, z.make(f32, {3, 4}), z.make(f32, {broken ? 4 : 3, 5}), z.make(f32, {4, 5}));
       }},
      {"mixed products keep their rows",
       [](Stream& s, Zeros& z, bool broken) {
         mixed_matmul(s, z.make(bf16, {3, 5}), weight_of(z.make(f32, {4, 5})), z.make(f32, {broken ? 2 : 3, 4}));
       }},
      {"each expert has its rows",
       [](Stream& s, Zeros& z, bool broken) {
         const std::vector<int64_t> offsets(broken ? 2 : 3, 0);
         ess(s, {z.make(f32, {3, 4})}, offsets, z.make(f32, {2, 4}));
       }},
      {"experts are of the model",
       [](Stream& s, Zeros& z, bool broken) {
         const std::vector<int64_t> offsets = {0, 2};
         const std::vector<int32_t> experts = {broken ? 2 : 1};
         ess(s, {z.make(f32, {3, 4})}, offsets, z.make(f32, {2, 4}), experts);
       }},
      {"offsets grow",
       [](Stream& s, Zeros& z, bool broken) {
         const std::vector<int64_t> offsets = {0, broken ? 3 : 2, 2};
         ess(s, {z.make(f32, {3, 4})}, offsets, z.make(f32, {2, 4}));
       }},
      {"offsets end within the rows",
       [](Stream& s, Zeros& z, bool broken) {
         const std::vector<int64_t> offsets = {0, broken ? 4 : 3};
         estmm(s, {z.make(f32, {3, 4})}, {z.make(f32, {4, 5})}, offsets, z.make(f32, {1, 4, 5}));
       }},
      {"top-k has k experts in the kept groups",
       [](Stream& s, Zeros& z, bool broken) {
         RouterRule rule{.experts = 4, .top_k = 2, .groups = 4};
         rule.kept_groups = broken ? 1 : 2;
         route(s, rule, z.make(f32, {3, 4}), {}, false, z.make(i32, {3, 2}), z.make(f32, {3, 2}), {}, {});
       }},
      {"groups are equal",
       [](Stream& s, Zeros& z, bool broken) {
         RouterRule rule = kRouter;
         rule.groups = rule.kept_groups = broken ? 3 : 2;
         route(s, rule, z.make(f32, {3, 4}), {}, false, z.make(i32, {3, 2}), z.make(f32, {3, 2}), {}, {});
       }},
      {"statistics have a place for each expert",
       [](Stream& s, Zeros& z, bool broken) {
         std::vector<double> counts(broken ? 3 : 4);
         route(s, kRouter, z.make(f32, {3, 4}), {}, false, z.make(i32, {3, 2}), z.make(f32, {3, 2}), {counts, {}}, {});
         s.wait();
       }},
      {"the auxiliary loss has a gradient for each expert",
       [](Stream& s, Zeros& z, bool broken) {
         const std::vector<float> d_prob(broken ? 3 : 4);
         const TensorView logits = z.make(f32, {3, 4});
         route_backward(s, kRouter, logits, z.make(i32, {3, 2}), z.make(f32, {3, 2}), d_prob, 0.0f, logits);
       }},
      {"each expert has a position",
       [](Stream& s, Zeros& z, bool broken) {
         const Views v = z.make(kLayoutOperands);
         TokenLayout layout = layout_of(v);
         const std::span positions = std::span(kPositions).first(broken ? 3 : 4);
         build_token_layout(s, v[0], v[1], {}, positions, {}, layout);
       }},
      {"each choice has a rank",
       [](Stream& s, Zeros& z, bool broken) {
         const Views v = z.make(kLayoutOperands);
         TokenLayout layout = layout_of(v);
         build_token_layout(s, v[0], v[1], z.make(f32, {broken ? 2 : 3, 2}), kPositions, {1, 3}, layout);
       }},
      {"a capacity is one per some tokens",
       [](Stream& s, Zeros& z, bool broken) {
         const Views v = z.make(kLayoutOperands);
         TokenLayout layout = layout_of(v);
         const CapacityRule rule{1, broken ? 0 : 3};
         build_token_layout(s, v[0], v[1], {}, kPositions, rule, layout);
       }},
      {"rows of a table lie in the vocabulary",
       [](Stream& s, Zeros& z, bool broken) {
         embed(s, z.make(f32, {4, 3}), {broken ? 3 : 2, 6}, z.make(i32, {2}), z.make(f32, {2, 3}));
       }},
      {"logits lie in the vocabulary",
       [](Stream& s, Zeros& z, bool broken) {
         softmax_statistics(s, z.make(f32, {3, 4}), {broken ? -1 : 0, 6}, z.make(i32, {3}), z.make(f32, {3, 3}));
       }},
      {"every part has statistics of all rows",
       [](Stream& s, Zeros& z, bool broken) {
         const TensorView logits = z.make(f32, {3, 4});
         cross_entropy_of_part(s, logits, {2, 6}, z.make(i32, {3}), z.make(f32, {2, broken ? 2 : 3, 3}), 1.0f,
                               z.make(f32, {3}), logits);
       }},
      {"gathered rows have room",
       [](Stream& s, Zeros& z, bool broken) {
         const TensorView rows = z.make(i32, {3});
         gather_rows(s, z.make(f32, {3, 4}), rows.as<int32_t>(), broken ? 3 : 2, z.make(f32, {2, 4}));
       }},
      {"gathered rows are numbers",
       [](Stream& s, Zeros& z, bool broken) {
         const DType dtype = broken ? i32 : f32;
         const TensorView rows = z.make(i32, {2});
         gather_rows(s, z.make(dtype, {3, 4}), rows.as<int32_t>(), 2, z.make(dtype, {2, 4}));
       }},
  };
}

bool is_refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == Exit::internal;
  }
  return false;
}

TEST(Checks, EveryOperandOfAnotherWidthOrTypeIsRefused) {
  TestStream test;
  for (const Call& call : all_calls()) {
    Zeros zeros;
    const Views views = zeros.make(call.operands);
    call.run(test.stream, views);
    for (size_t i = 0; i < views.size(); ++i) {
      Views narrow = views, other = views;
      --narrow[i].shape[static_cast<size_t>(narrow[i].rank - 1)];
      other[i].dtype = u8;
      EXPECT_TRUE(is_refused([&] { call.run(test.stream, narrow); })) << call.name << ", operand " << i << ", narrower";
      EXPECT_TRUE(is_refused([&] { call.run(test.stream, other); })) << call.name << ", operand " << i << ", u8";
    }
    wait_for_device();
  }
}

TEST(Checks, BrokenRulesAreRefused) {
  TestStream test;
  for (const Rule& rule : all_rules()) {
    Zeros zeros;
    EXPECT_NO_THROW(rule.call(test.stream, zeros, false)) << rule.name;
    EXPECT_TRUE(is_refused([&] { rule.call(test.stream, zeros, true); })) << rule.name;
    wait_for_device();
  }
}

}  // namespace
}  // namespace mw::test
