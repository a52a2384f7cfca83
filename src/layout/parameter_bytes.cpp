// The rows of parameters, gradients, moments and packed weights.
#include <algorithm>
#include <map>

#include "base/product_bytes.h"
#include "layout/byte_rows.h"
#include "layout/byte_table.h"
#include "layout/gradient_blocks.h"
#include "layout/muon_plan.h"
#include "layout/state_map.h"

namespace mw {
namespace {

// Where replicas sum bf16 gradients of experts in fp32.
void add_sum_pieces(ByteRows& out, const std::vector<ParamRow>& params, const std::vector<LocalParam>& locals,
                    const Mesh& mesh, const RunSpec& run) {
  if (mesh.edp == 1 || run.expert_gradients != DType::bf16) return;
  std::map<int64_t, int64_t> layers;  // elements
  int64_t block = 0, largest = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].trained || locals[i].replicas != Replicas::edp) continue;
    const int64_t elements = padded_gradient(locals[i].numel(), DType::bf16);
    block += elements;
    largest = std::max(largest, layers[params[i].layer] += elements);
  }
  if (block > 0) out.add(kSumPieces, ByteKind::workspace, DType::f32, {2, sum_piece_elements(largest, block)});
}

// What products read of [n, k] matrices in a bf16 run.
void add_packed(ByteRows& out, const std::string& name, int64_t matrices, const LocalParam& local,
                const Platform& platform) {
  const std::vector<int64_t> shape = {matrices, packed_weight_bytes(local.n, local.k, platform.native_bf16)};
  out.add("packed_forward." + name, ByteKind::packed, DType::u8, shape);
  if (!platform.one_packed_form) out.add("packed_backward." + name, ByteKind::packed, DType::u8, shape);
}

// A gradient and what products read for each replica slot, and room for a gradient that comes home.
void add_replicas(ByteRows& out, const std::vector<ParamRow>& params, const std::vector<LocalParam>& locals,
                  const RunSpec& run, int64_t slots, const Platform& platform) {
  const DType dtype = gradient_dtype(Replicas::edp, run);
  int64_t largest = 0;
  for (size_t i = 0; slots > 0 && i < params.size(); ++i) {
    if (!params[i].expert) continue;
    const std::string name = kReplicaSlots + params[i].name;
    std::vector<int64_t> shape = locals[i].shape;
    shape.front() = slots;
    out.add("grad." + name, ByteKind::gradient, dtype, shape);
    if (run.train.dtype == DType::bf16) add_packed(out, name, slots, locals[i], platform);
    else out.add("param." + name, ByteKind::packed, DType::f32, shape);
    largest = std::max(largest, locals[i].n * locals[i].k);
  }
  if (largest > 0) out.add(kReplicaGradient, ByteKind::workspace, dtype, {largest});
}

}  // namespace

bool is_plain_copy(const LocalParam& p, const Platform& platform) {
  return platform.one_packed_form && packed_weight_bytes(p.n, p.k, platform.native_bf16) == p.n * p.k * 2;
}

DType master_dtype(const ParamRow& row, const LocalParam& local, const RunSpec& run, const Platform& platform) {
  const bool splits = platform.split_masters && run.train.dtype == DType::bf16 && row.role == ParamRole::matrix &&
                      is_plain_copy(local, platform);
  return splits ? DType::u16 : DType::f32;
}

std::vector<ByteRow> parameter_bytes(const std::vector<ParamRow>& params, const ModelSpec& model, const RunSpec& run,
                                     const Mesh& mesh, const MeshCoords& coords,
                                     const std::vector<ExpertPlacement>& placements, const Platform& platform) {
  ByteRows out;
  std::vector<LocalParam> locals;
  for (const ParamRow& row : params) locals.push_back(local_param(row, model, placements, mesh, coords));
  const GradientBlocks blocks = make_gradient_blocks(params, locals, mesh, coords, run);
  const auto block_of_row = [&](size_t i) -> const GradientBlock& { return blocks.of(locals[i].replicas); };
  // With ZeRO the cut that this rank owns, else the whole.
  const auto cut_shape = [&](size_t i, bool is_cut) {
    if (!is_cut) return locals[i].shape;
    return std::vector<int64_t>{block_of_row(i).own(blocks.begins[i], locals[i].numel()).count};
  };
  const bool offloads = run.offload == Offload::optimizer;
  for (size_t i = 0; i < params.size(); ++i) {
    // Only the update reads these.
    const bool on_host = offloads && run.train.dtype == DType::bf16 && params[i].role == ParamRole::matrix;
    out.add("param." + params[i].name, ByteKind::master, master_dtype(params[i], locals[i], run, platform),
            cut_shape(i, cuts_master(params[i], block_of_row(i), run.train.dtype)), on_host);
  }
  // Each set that is summed together is one contiguous block.
  for (const Replicas replicas : {Replicas::dp, Replicas::stage, Replicas::edp})
    for (size_t i = 0; i < params.size(); ++i)
      if (params[i].trained && locals[i].replicas == replicas)
        out.add("grad." + params[i].name, ByteKind::gradient, gradient_dtype(replicas, run), locals[i].shape);
  add_sum_pieces(out, params, locals, mesh, run);
  const bool trains_experts =
      std::any_of(params.begin(), params.end(), [](const ParamRow& row) { return row.expert && row.trained; });
  if (trains_experts && squares_when_stored(run, mesh, platform.one_packed_form))
    out.add(kSquareSums, ByteKind::workspace, DType::i64, {kSquareSumValues});
  for (size_t i = 0; i < params.size(); ++i) {
    for (const StateKind moment : {StateKind::adam_m, StateKind::adam_v})
      if (has_state(moment, params[i]))
        out.add(state_name(moment, params[i]), ByteKind::moment, run.moments, cut_shape(i, block_of_row(i).is_cut()),
                offloads);
  }
  MuonBuffers buffers;
  for (const ParamRow& row : params) buffers.widen(row);
  for (ByteRow& row : muon_rows(buffers, mesh)) out.rows.push_back(std::move(row));
  if (run.train.dtype == DType::bf16) {
    // The head of a tied model reads the embedding; a rank without it only looks rows up.
    const bool has_head =
        std::any_of(params.begin(), params.end(), [](const ParamRow& row) { return row.name == "final_norm"; });
    int64_t gathered = 0;  // elements of the largest matrix that must be whole to be packed
    for (size_t i = 0; i < params.size(); ++i) {
      const ParamRow& row = params[i];
      const LocalParam& local = locals[i];
      const bool read_by_products =
          row.role == ParamRole::matrix || (row.role == ParamRole::embedding && model.tie_embeddings && has_head);
      if (!read_by_products) continue;
      add_packed(out, row.name, local.matrices, local, platform);
      if (cuts_master(row, block_of_row(i), run.train.dtype) && !is_plain_copy(local, platform))
        gathered = std::max(gathered, local.n * local.k);
    }
    if (gathered > 0) out.add("zero.gathered", ByteKind::workspace, DType::f32, {gathered});
  }
  add_replicas(out, params, locals, run, replica_slots(run.moe, mesh.ep), platform);
  return out.rows;
}

}  // namespace mw
