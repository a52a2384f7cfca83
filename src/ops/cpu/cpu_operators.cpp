#include "ops/cpu/operators.h"

namespace mw {

const Operators& cpu_operators() {
  static const Operators table = {
      .backend = "cpu",
      .fill_zero = cpu::fill_zero,
      .convert = cpu::convert,
      .add = cpu::add,
      .clamp = cpu::clamp,
      .clamp_backward = cpu::clamp_backward,
      .sum_squares = cpu::sum_squares,
      .all_finite = cpu::all_finite,
      .rms_norm = cpu::rms_norm,
      .add_rms_norm = cpu::add_rms_norm,
      .rms_norm_apply = cpu::rms_norm_apply,
      .rms_norm_backward = cpu::rms_norm_backward,
      .rope = cpu::rope,
      .activate = cpu::activate,
      .activate_backward = cpu::activate_backward,
      .embed = cpu::embed,
      .embed_backward = cpu::embed_backward,
      .cross_entropy = cpu::cross_entropy,
      .attention = cpu::attention,
      .attention_backward = cpu::attention_backward,
      .adamw = cpu::adamw,
      .pack_weight = cpu::pack_weight,
      .matmul = cpu::matmul,
      .matmul_d_input = cpu::matmul_d_input,
      .matmul_d_weight = cpu::matmul_d_weight,
      .esmm = cpu::esmm,
      .esmm_d_input = cpu::esmm_d_input,
      .estmm = cpu::estmm,
      .ess = cpu::ess,
      .route = cpu::route,
      .route_backward = cpu::route_backward,
      .build_token_layout = cpu::build_token_layout,
      .gather_rows = cpu::gather_rows,
      .combine_rows = cpu::combine_rows,
      .fill_index = cpu::fill_index,
      .gather_values = cpu::gather_values,
      .scatter_values = cpu::scatter_values,
      .norm_workspace_bytes = cpu::norm_workspace_bytes,
      .embedding_workspace_bytes = cpu::embedding_workspace_bytes,
      .attention_workspace_bytes = cpu::attention_workspace_bytes,
      .matmul_workspace_bytes = cpu::matmul_workspace_bytes,
      .esmm_workspace_bytes = cpu::esmm_workspace_bytes,
      .router_workspace_bytes = cpu::router_workspace_bytes,
      .token_layout_workspace_bytes = cpu::token_layout_workspace_bytes,
      .index_workspace_bytes = cpu::index_workspace_bytes,
  };
  return table;
}

}  // namespace mw
