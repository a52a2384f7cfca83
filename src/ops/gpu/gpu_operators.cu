#include "ops/gpu/operators.h"
#include "ops/gpu/vendor.h"

namespace mw {

const Operators& gpu_operators() {
  static const Operators table = [] {
    Operators t;
    t.backend = gpu::kBackendName;
    t.fill_zero = gpu::fill_zero;
    t.fill_zeros = gpu::fill_zeros;
    t.convert = gpu::convert;
    t.add = gpu::add;
    t.scaled_sum = gpu::scaled_sum;
    t.clamp = gpu::clamp;
    t.clamp_backward = gpu::clamp_backward;
    t.sum_squares = gpu::sum_squares;
    t.sum_squares_exactly = gpu::sum_squares_exactly;
    t.sum_squares_by_tile = gpu::sum_squares_by_tile;
    t.all_finite = gpu::all_finite;
    t.rms_norm = gpu::rms_norm;
    t.add_rms_norm = gpu::add_rms_norm;
    t.rms_norm_apply = gpu::rms_norm_apply;
    t.rms_norm_backward = gpu::rms_norm_backward;
    t.row_products = gpu::row_products;
    t.add_bias = gpu::add_bias;
    t.bias_backward = gpu::bias_backward;
    t.rope = gpu::rope;
    t.norm_rope = gpu::norm_rope;
    t.norm_rope_apply = gpu::norm_rope_apply;
    t.norm_rope_backward = gpu::norm_rope_backward;
    t.copy_columns = gpu::copy_columns;
    t.sum_columns = gpu::sum_columns;
    t.activate = gpu::activate;
    t.activate_backward = gpu::activate_backward;
    t.gate_rows = gpu::gate_rows;
    t.gate_backward = gpu::gate_backward;
    t.embed = gpu::embed;
    t.embed_backward = gpu::embed_backward;
    t.clear_rows = gpu::clear_rows;
    t.cross_entropy = gpu::cross_entropy;
    t.softmax_statistics = gpu::softmax_statistics;
    t.cross_entropy_of_part = gpu::cross_entropy_of_part;
    t.first_keys_of_window = gpu::first_keys_of_window;
    t.attention = gpu::attention;
    t.attention_backward = gpu::attention_backward;
    t.largest_logits = gpu::largest_logits;
    t.add_sinks = gpu::add_sinks;
    t.sinks_backward = gpu::sinks_backward;
    t.attention_workspace_bytes = gpu::attention_workspace_bytes;
    t.describe_attention = gpu::describe_attention;
    t.describe_esmm = gpu::describe_esmm;
    t.adamw = gpu::adamw;
    t.muon_momentum = gpu::muon_momentum;
    t.normalise_matrices = gpu::normalise_matrices;
    t.muon_update = gpu::muon_update;
    t.pack_weight = gpu::pack_weight;
    t.matmul = gpu::matmul;
    t.matmul_d_input = gpu::matmul_d_input;
    t.matmul_d_weight = gpu::matmul_d_weight;
    t.mixed_matmul = gpu::mixed_matmul;
    t.mixed_matmul_d_input = gpu::mixed_matmul_d_input;
    t.mixed_matmul_d_weight = gpu::mixed_matmul_d_weight;
    t.esmm = gpu::esmm;
    t.esmm_d_input = gpu::esmm_d_input;
    t.estmm = gpu::estmm;
    t.ess = gpu::ess;
    t.add_expert_bias = gpu::add_expert_bias;
    t.expert_bias_products = gpu::expert_bias_products;
    t.esfk = gpu::esfk;
    t.matmul_workspace_bytes = gpu::matmul_workspace_bytes;
    t.esmm_workspace_bytes = gpu::esmm_workspace_bytes;
    t.mixed_matmul_workspace_bytes = gpu::mixed_matmul_workspace_bytes;
    t.route = gpu::route;
    t.route_backward = gpu::route_backward;
    t.build_token_layout = gpu::build_token_layout;
    t.gather_rows = gpu::gather_rows;
    t.combine_rows = gpu::combine_rows;
    t.fill_index = gpu::fill_index;
    t.gather_values = gpu::gather_values;
    t.scatter_values = gpu::scatter_values;
    t.sort_units = gpu::sort_units;
    t.count_units = gpu::count_units;
    t.unit_choices = gpu::unit_choices;
    t.router_workspace_bytes = gpu::router_workspace_bytes;
    t.token_layout_workspace_bytes = gpu::token_layout_workspace_bytes;
    t.index_workspace_bytes = gpu::index_workspace_bytes;
    t.unit_workspace_bytes = gpu::unit_workspace_bytes;
    t.embedding_workspace_bytes = gpu::embedding_workspace_bytes;
    t.norm_workspace_bytes = gpu::norm_workspace_bytes;
    return t;
  }();
  return table;
}

}  // namespace mw
