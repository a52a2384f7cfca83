// Parity: compares a Hugging Face model folder, or a checkpoint, with a golden file that transformers computed from it.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.h"
#include "config/choices.h"

namespace mw {

// One compared quantity. `norm_error` is |a - b| / |b| over the whole tensor (Frobenius), `element_error` the largest
// |a - b| / max(|b|, rms(b)) over its elements.
struct ParityLine {
  std::string name;
  double norm_error = 0, element_error = 0;
  double norm_tolerance = 0, element_tolerance = 0;
  std::string where;  // the worst element: index, got, expected
  bool ok() const { return norm_error <= norm_tolerance && element_error <= element_tolerance; }
};

// Exactly one of the two is set.
struct ParityModel {
  std::string hf_dir;      // model folder
  std::string checkpoint;  // its weights, as `export` would write them
};

struct ParityReport {
  std::vector<ParityLine> lines;
  bool ok() const;
};

// Computes in fp32 everything that the golden file contains: logits, router_logits.I, loss, aux_loss, every grad.*, and
// 20 AdamW steps. Every tensor of the golden file must be recognized, and every trained parameter must have its
// gradient in it. Errors: config, data. `comm` must be this process alone. device: as train.device.
ParityReport run_parity(const ParityModel& model, const std::string& golden_path, Comm& comm, int threads,
                        DeviceChoice device);

std::string format_report(const ParityReport& report);

}  // namespace mw
