#include "config/run_spec.h"

namespace mw {

RunSpec::RunSpec() = default;
RunSpec::~RunSpec() = default;
RunSpec::RunSpec(const RunSpec&) = default;
RunSpec::RunSpec(RunSpec&&) noexcept = default;
RunSpec& RunSpec::operator=(const RunSpec&) = default;
RunSpec& RunSpec::operator=(RunSpec&&) noexcept = default;

AuxScope aux_scope(const RunSpec& run, const ModelSpec& model) {
  if (run.moe.aux_scope != AuxScope::automatic) return run.moe.aux_scope;
  return model.sequence_aux ? AuxScope::sequence : AuxScope::layer;
}

std::string metrics_file(const RunSpec& run) {
  if (run.log.jsonl != "auto") return run.log.jsonl;
  return run.checkpoint.dir.empty() ? "" : run.checkpoint.dir + "/metrics.jsonl";
}

double aux_loss_coef(const RunSpec& run, const ModelSpec& model) {
  return run.moe.aux_loss_coef >= 0 ? run.moe.aux_loss_coef : model.aux_loss_coef;
}

bool counts_best_scores(const RunSpec& run, const ModelSpec& model, const LayerSpec& layer) {
  if (layer.feed_forward != FeedForwardKind::moe || !layer.moe.selection_bias || layer.moe.top_k == layer.moe.experts)
    return false;
  const AuxScope scope = aux_scope(run, model);
  return scope == AuxScope::model || (scope == AuxScope::sequence && aux_loss_coef(run, model) > 0);
}

}  // namespace mw
