// The packed forms in the table of bytes are as large as the operators need them.
#include <gtest/gtest.h>

#include "layout/byte_table.h"
#include "ops/matmul.h"

namespace mw::test {
namespace {

TEST(PackedRule, TableAndOperatorsAgree) {
  for (const bool native_bf16 : {true, false})
    for (const int64_t width : {1, 24, 63, 64, 65, 100, 1024})
      for (const Activation activation : {Activation::swiglu, Activation::gelu}) {
        NativeModel native;
        native.width = width;
        native.heads = 1;
        native.head_dim = 10;
        native.expert_width = width + 7;
        native.shared_experts = 1;
        native.dense_layers = 1;
        native.activation = activation;
        RunSpec run;
        run.mesh.ep = 3;
        run.train.global_batch = 3;
        Platform platform;
        platform.native_bf16 = native_bf16;
        const ModelSpec model = build_native_model(native);
        const ExpertPlacement experts = make_block_placement(8, 3);
        const Mesh mesh = make_mesh(run.mesh, 3);
        const std::vector<ExpertPlacement> placements = {{}, experts, experts, experts};
        const MeshCoords coords = coords_of(mesh, 2);
        const std::vector<ByteRow> rows =
            parameter_bytes(param_table(model), model, run, mesh, coords, placements, platform);
        int checked = 0;
        for (const ParamRow& param : param_table(model))
          for (const char* direction : {"packed_forward.", "packed_backward."})
            for (const ByteRow& row : rows) {
              if (row.name != direction + param.name) continue;
              const LocalParam local = local_param(param, model, placements, mesh, coords);
              EXPECT_EQ(row.shape, (std::vector<int64_t>{param.expert ? 2 : 1,
                                                         packed_weight_bytes(local.n, local.k, native_bf16)}))
                  << row.name;
              ++checked;
            }
        // Per layer four projections, then up and down of a dense layer, or of the experts and of the shared one; and
        // the head.
        EXPECT_EQ(checked, 2 * (4 * 4 + 2 + 3 * 4 + 1));
      }
}

}  // namespace
}  // namespace mw::test
