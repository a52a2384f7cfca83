// A plan repeats the rule by which a CPU's operators take scratch, because it links none. This room links both.
#include <gtest/gtest.h>

#include "model/platform.h"
#include "spec/platform_profile.h"

namespace mw::test {
namespace {

TEST(ScratchRule, PlansAndRunsAgreeOnCpus) {
  PlatformProfile cpu;
  cpu.one_packed_form = false;
  for (const char* dtype : {"bf16", "bf16 with gradients", "fp32"})
    for (const int64_t width : {256, 1024, 4096, 7168})
      for (const int64_t vocab : {256, 8192, 151936})
        for (const char* attention : {"grouped", "latent"}) {
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
          run.train.dtype = std::string(dtype, 4);
          if (dtype[4] != 0) run.expert_gradients = "bf16";
          run.train.seq_len = 512;
          run.train.global_batch = 2;
          const ModelSpec model = build_native_model(native);
          const Mesh mesh = make_mesh(run.mesh, 1);
          EXPECT_EQ(platform_of(cpu, model, run).ops_workspace_bytes,
                    measure_platform(model, run, mesh, 1, DeviceKind::cpu).ops_workspace_bytes)
              << dtype << ' ' << width << ' ' << vocab << ' ' << attention;
        }
  cpu.one_packed_form = true;
  cpu.scratch_bytes = 12345;
  EXPECT_EQ(platform_of(cpu, build_native_model({}), {}).ops_workspace_bytes, 12345);
}

}  // namespace
}  // namespace mw::test
