// What sinks add to attention in bf16, at the sizes of gpt-oss (64 heads of 64 over 8): forward and backward passes of
// both, in turn, so that a slow moment of the machine meets both.
//   bench_attention_sinks [TOKENS]      in all, at least one sequence; 8192 unless said
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "comm/comm.h"
#include "engine/engine.h"
#include "ops/device.h"
#include "ops/sinks.h"
#include "probe/meter.h"
#include "probe/probe_tensors.h"

namespace {

using namespace mw;

void measure(Comm& world, Stream& stream, int64_t seq_len, int64_t tokens) {
  AttentionShape shape{std::max<int64_t>(1, tokens / seq_len), seq_len, 64, 8, 64, 64, 0.125f};
  const int64_t T = shape.sequences * seq_len, H = shape.heads, G = shape.kv_heads, h = shape.head_dim;
  ProbeTensors t(stream,
                 {{"q", DType::bf16, {T, H, h}, 0},
                  {"k", DType::bf16, {T, G, h}, 0},
                  {"v", DType::bf16, {T, G, h}, 0},
                  {"o", DType::bf16, {T, H, h}, 0},
                  {"d_o", DType::bf16, {T, H, h}, 0},
                  {"d_q", DType::bf16, {T, H, h}, 0},
                  {"d_k", DType::bf16, {T, G, h}, 0},
                  {"d_v", DType::bf16, {T, G, h}, 0},
                  {"lse", DType::f32, {H, T}, 0},
                  {"delta", DType::f32, {H, T}, 0},
                  {"sinks", DType::f32, {H}, 0},
                  {"d_sinks", DType::f32, {H}, 0},
                  {"work", DType::u8, {attention_workspace_bytes(shape, DType::bf16, 1, stream.device().kind)}, 0}});
  stream.workspace().attach(t("work").data, static_cast<size_t>(t("work").bytes()));
  const auto forward = [&] { attention(stream, shape, t("q"), t("k"), t("v"), t("o"), t("lse")); };
  const auto backward = [&](const TensorView& delta) {
    attention_backward(stream, shape, t("q"), t("k"), t("v"), t("o"), t("lse"), t("d_o"), t("d_q"), t("d_k"), t("d_v"),
                       {}, delta);
  };
  Meter meter(world, stream, 1.0);
  const double ratio = meter.ratio_of(
      [&] {
        forward();
        backward({});
      },
      [&] {
        forward();
        add_sinks(stream, shape, t("sinks"), t("o"), t("lse"));
        backward(t("delta"));
        sinks_backward(stream, shape, DType::bf16, t("sinks"), t("lse"), t("delta"), t("d_sinks"));
      });
  fmt::print("{:>6} tokens a sequence, {}: with sinks {:.3f} of the speed without\n", seq_len,
             describe_attention(stream, shape, DType::bf16), ratio);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 8192;
  try {
    const std::unique_ptr<Comm> world = make_self_comm();
    Stream stream = open_stream(choose_device(DeviceChoice::automatic, 0), 1);
    for (const int64_t seq_len : {1024, 2048, 4096, 8192}) measure(*world, stream, seq_len, tokens);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_attention_sinks: error: {}\n  hint: {}\n", error.what(), error.hint());
    return static_cast<int>(error.code());
  }
}
