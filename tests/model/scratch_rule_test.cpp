// A plan repeats the rule by which a CPU's operators take scratch, because it links none. This room links both.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "layout/attention_scratch.h"
#include "layout/platform_profile.h"
#include "layout/product_scratch.h"
#include "model/platform.h"
#include "ops/matmul.h"
#include "ops/muon.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

// Of the table of bytes, as plans have it.
int64_t scratch_of(const PlatformProfile& profile, const ModelSpec& model, const RunSpec& run, const Mesh& mesh) {
  const Platform platform = platform_of(profile, run);
  const std::vector<TransportKind> transports = choose_transports(transport_names(run.moe.transport, model), mesh.ep);
  return std::max({platform.ops_workspace_bytes, attention_scratch_bytes(model, run, mesh, platform),
                   product_scratch_bytes(model, run, mesh, transports, platform)});
}

int64_t measured_on_cpu(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int threads) {
  return measure_platform(model, run, mesh, threads, DeviceKind::cpu).ops_workspace_bytes;
}

TEST(ScratchRule, PlansAndRunsAgreeOnCpus) {
  PlatformProfile cpu;
  cpu.one_packed_form = false;
  for (const auto& [dtype, gradients] :
       {std::pair(DType::bf16, DType::f32), std::pair(DType::bf16, DType::bf16), std::pair(DType::f32, DType::f32)})
    for (const int64_t width : {256, 1024, 4096, 7168})
      for (const int64_t vocab : {256, 8192, 151936})
        for (const AttentionKind attention : {AttentionKind::grouped, AttentionKind::latent}) {
          NativeModel native;
          native.width = width;
          native.vocab = vocab;
          native.heads = 8;
          native.experts = 64;
          native.expert_width = width / 2;
          native.shared_experts = 3;
          native.dense_layers = 1;
          native.attention = attention;
          native.q_rank = width / 4;
          native.kv_rank = width / 8;
          RunSpec run;
          run.train.dtype = dtype;
          run.expert_gradients = gradients;
          run.train.seq_len = 512;
          run.train.global_batch = 2;
          const ModelSpec model = build_native_model(native);
          const Mesh mesh = make_mesh(run.mesh, 1);
          EXPECT_EQ(scratch_of(cpu, model, run, mesh), measured_on_cpu(model, run, mesh, 1))
              << word_of(dtype) << ' ' << word_of(gradients) << ' ' << width << ' ' << vocab << ' '
              << word_of(attention);
        }
}

TEST(ScratchRule, LongSequencesTakeMoreForEveryThread) {
  PlatformProfile cpu;
  cpu.one_packed_form = false;
  NativeModel native;
  native.width = 256;
  native.heads = 8;
  native.experts = 8;
  for (const AttentionKind attention : {AttentionKind::grouped, AttentionKind::latent})
    for (const int64_t seq_len : {64, 4096, 32768, 100000})
      for (const int threads : {1, 3, 16, 200})
        for (const int64_t tp : {1, 2, 4}) {
          native.attention = attention;
          native.kv_heads = native.attention == AttentionKind::grouped ? 4 : 0;
          native.q_rank = native.kv_rank = 64;
          RunSpec run;
          run.train.seq_len = seq_len;
          run.train.global_batch = 24;
          run.train.micro_batches = 2;
          run.train.threads = threads;
          run.mesh.tp = tp;
          const ModelSpec model = build_native_model(native);
          const Mesh mesh = make_mesh(run.mesh, 4);
          const int64_t planned = scratch_of(cpu, model, run, mesh),
                        measured = measured_on_cpu(model, run, mesh, threads);
          const std::string label = fmt::format("{} {} threads {} tp {}", word_of(attention), seq_len, threads, tp);
          EXPECT_EQ(planned, measured) << label;

          run.train.threads = 0;
          cpu.threads = threads;
          EXPECT_EQ(scratch_of(cpu, model, run, mesh), planned) << label;
        }
}

// Tensor parallelism cuts the widest products, slices of experts cut theirs, and Muon multiplies whole matrices.
TEST(ScratchRule, PlansAndRunsAgreeOnWhatIsCut) {
  PlatformProfile cpu;
  cpu.one_packed_form = false;
  for (const DType gradients : {DType::f32, DType::bf16})
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon})
      for (const MoeTpMode mode : {MoeTpMode::ssmb, MoeTpMode::ted})
        for (const int64_t dense_width : {0, 2000})
          for (const char* transport : {"auto", "gather_tokens", "gather_weights"})
            for (const auto& [tp, ep] : {std::pair(1, 4), std::pair(2, 2), std::pair(4, 1), std::pair(1, 1)}) {
              if (mode == MoeTpMode::ted && transport == std::string("gather_tokens")) continue;  // both cut widths
              NativeModel native;
              native.width = 192;
              native.heads = 6;
              native.experts = 8;
              native.expert_width = 1000;
              native.shared_experts = 1;
              native.vocab = 1001;
              native.dense_layers = dense_width > 0 ? 1 : 0;
              native.dense_width = dense_width;
              RunSpec run;
              run.expert_gradients = gradients;
              run.train.optimizer = optimizer;
              run.train.seq_len = 64;
              run.train.global_batch = 8;
              run.moe.transport = transport;
              run.moe.tp_mode = mode;
              run.mesh.tp = tp;
              run.mesh.ep = ep;
              const ModelSpec model = build_native_model(native);
              const Mesh mesh = make_mesh(run.mesh, mode == MoeTpMode::ted ? tp * ep : std::max(tp, ep));
              EXPECT_EQ(scratch_of(cpu, model, run, mesh), measured_on_cpu(model, run, mesh, 1))
                  << word_of(gradients) << ' ' << word_of(optimizer) << ' ' << word_of(mode) << ' ' << dense_width
                  << ' ' << transport << " tp " << tp << " ep " << ep;
            }
}

// A stream with the scratch that a rank of TP in fp32 measures.
TestStream stream_in_fp32(const NativeModel& native, RunSpec run, int tp) {
  run.train.dtype = DType::f32;
  run.train.seq_len = 256;
  run.train.global_batch = 8;
  run.mesh.tp = tp;
  const int64_t bytes = measured_on_cpu(build_native_model(native), run, make_mesh(run.mesh, tp), 1);
  return TestStream(1, static_cast<size_t>(bytes));
}

// A rank of TP holds an eighth of each matrix, but Muon multiplies whole ones.
TEST(ScratchRule, HoldsWhatMuonTakesForWholeMatrices) {
  NativeModel native;
  native.vocab = 256;
  native.width = 960;
  native.heads = 16;
  native.experts = 8;
  native.expert_width = 64;
  native.dense_layers = 1;
  native.dense_width = 3840;
  RunSpec run;
  run.train.optimizer = Optimizer::muon;
  TestStream test = stream_in_fp32(native, run, 8);
  const int64_t n = native.width, k = native.dense_width;
  const Owned x = to_operand(random_tensor("x", {1, n, k}, DType::f32)), next = make_output(DType::f32, {1, n, k}),
              gram = make_output(DType::f32, {1, n, n}), square = make_output(DType::f32, {1, n, n}),
              sums = make_output(DType::f32, {1, kNormParts});
  EXPECT_NO_THROW(orthogonalise(test.stream, x.view, DType::f32, {next.view, gram.view, square.view, sums.view}));
}

// In fp32 a router is a product like others: here the widest one.
TEST(ScratchRule, HoldsWhatTheRouterTakesInFp32) {
  NativeModel native;
  native.vocab = 256;
  native.width = 128;
  native.heads = 4;
  native.experts = 256;
  native.expert_width = 64;
  native.top_k = 8;
  TestStream test = stream_in_fp32(native, {}, 2);
  for (const int64_t tokens : {1000, 1024}) {
    const Owned dy = to_operand(random_tensor("dy", {tokens, 256}, DType::f32)),
                x = to_operand(random_tensor("x", {tokens, 128}, DType::f32)), dw = make_output(DType::f32, {256, 128});
    EXPECT_NO_THROW(matmul_d_weight(test.stream, dy.view, x.view, dw.view)) << tokens;
  }
}

// What streams reserve for cuDNN, whose numbers were read off its plans on an H200 (base/library_attention.h).
TEST(ScratchRule, GpusTakeWhatTheirAttentionLibraryDoes) {
  constexpr int64_t kMiB = int64_t{1} << 20, kOther = 96 * kMiB;
  PlatformProfile gpu;
  gpu.one_packed_form = true;
  gpu.scratch_bytes = kOther;
  NativeModel native;
  native.width = 1024;
  native.heads = 32;
  native.kv_heads = 4;
  native.head_dim = 128;
  const auto scratch = [&](int64_t sequences, int64_t seq_len, int64_t tp = 1, DType dtype = DType::bf16) {
    RunSpec run;
    run.train.dtype = dtype;
    run.train.seq_len = seq_len;
    run.train.global_batch = sequences;
    run.mesh.tp = tp;
    return scratch_of(gpu, build_native_model(native), run, make_mesh(run.mesh, static_cast<int>(tp)));
  };
  EXPECT_EQ(scratch(4, 4096), kOther);  // a profile that says nothing has it in its number

  gpu.attention_library = true;
  const auto of_heads = [](int64_t heads, int64_t rows, int64_t width) {  // scores, gradients of keys and values
    return heads * rows * (2 * rows + (2 * width + 8) * 2) + kMiB + 256;
  };
  EXPECT_EQ(scratch(4, 4096), of_heads(32, 4096, 128));
  EXPECT_EQ(scratch(4, 4096, 4), of_heads(32, 4096, 128));  // four of the rank's 8 heads at a time
  EXPECT_EQ(scratch(1, 4096, 4), of_heads(8, 4096, 128));
  native.heads = 28;  // three on the last rank, of four sequences at a time; four on the first, of two
  EXPECT_EQ(scratch(8, 6144, 8), of_heads(12, 6144, 128));
  native.heads = 32;
  EXPECT_EQ(scratch(1, 16384), of_heads(8, 16384, 128));  // one KV head at a time from here on
  EXPECT_EQ(scratch(1, 16400), of_heads(8, 16512, 128));
  EXPECT_EQ(scratch(1, 20000), of_heads(8, 20096, 128));
  EXPECT_EQ(scratch(1, 22528), of_heads(8, 22528, 128));
  EXPECT_LT(scratch(1, 32768), int64_t{2} << 30);  // too long for its deterministic pass, not for the other
  EXPECT_EQ(scratch(1, 128), kOther);
  EXPECT_EQ(scratch(4, 4096, 1, DType::f32), kOther);
  EXPECT_EQ(scratch(1, 1 << 21, 1, DType::f32),
            32 * (int64_t{1} << 21) * 4);  // own kernels: one number a token and head
  native.head_dim = 260;                   // refused: own kernels
  EXPECT_EQ(scratch(4, 4096), kOther);

  native.attention = AttentionKind::latent;
  native.head_dim = native.kv_heads = 0;
  native.q_rank = native.kv_rank = 64;
  const ModelSpec latent = build_native_model(native);
  const AttentionSpec& a = latent.layers.front().attention;
  EXPECT_EQ(scratch(1, 4096), a.heads * 4096 * (2 * 4096 + (a.head_dim + a.value_dim() + 8) * 2) + kMiB + 256);
}

}  // namespace
}  // namespace mw::test
