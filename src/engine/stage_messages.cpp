#include "engine/stage_messages.h"

namespace mw {

void StageMessages::Sent::wait() {
  if (rows != nullptr) rows->wait();
  if (host != nullptr) host->wait();
  rows.reset();
  host.reset();
}

void StageMessages::send(Sent& sent, Comm& comm, int to, TensorView view, const std::vector<double>& riding) {
  sent.wait();
  sent.riding = riding;
  sent.rows = comm.send(model_.stream(), bytes_of(view), to);
  if (!riding.empty()) sent.host = comm.send(std::as_bytes(std::span(sent.riding)), to);
}

void StageMessages::receive(Comm& comm, int from, TensorView view, std::vector<double>& riding) {
  comm.receive(model_.stream(), bytes_of(view), from)->wait();
  if (!riding.empty()) comm.receive(std::as_writable_bytes(std::span(riding)), from)->wait();
}

void StageMessages::before_output(int stage) { outputs_[stage].wait(); }
void StageMessages::before_input_gradient(int stage) { input_gradients_[stage].wait(); }

void StageMessages::send_activation(int stage, int64_t micro_batch, int64_t tokens, const std::vector<double>& riding) {
  send(outputs_[stage], *comms_.after[static_cast<size_t>(stage)].activations, 1,
       model_.output(stage, micro_batch, tokens), riding);
}

void StageMessages::receive_activation(int stage, int64_t micro_batch, int64_t tokens, std::vector<double>& riding) {
  receive(*comms_.after[static_cast<size_t>(stage) - 1].activations, 0, model_.input(stage, micro_batch, tokens),
          riding);
}

void StageMessages::send_gradient(int stage, int64_t micro_batch, int64_t tokens, const std::vector<double>& riding) {
  send(input_gradients_[stage], *comms_.after[static_cast<size_t>(stage) - 1].gradients, 0,
       model_.input_gradient(stage, micro_batch, tokens), riding);
}

void StageMessages::receive_gradient(int stage, int64_t micro_batch, int64_t tokens, std::vector<double>& riding) {
  receive(*comms_.after[static_cast<size_t>(stage)].gradients, 1, model_.output_gradient(stage, micro_batch, tokens),
          riding);
}

void StageMessages::finish() {
  for (auto* sent : {&outputs_, &input_gradients_})
    for (auto& [stage, message] : *sent) message.wait();
}

}  // namespace mw
