#include "comm/gpu_comm.h"

namespace mw {
namespace {

[[noreturn]] void fail_without_library() {
  fail(Exit::unsupported, "several ranks on GPUs need NCCL (NVIDIA) or RCCL (AMD), but this build has neither",
       "install libnccl-dev or rccl and build again, or set train.device = \"cpu\"");
}

}  // namespace

std::string gpu_library() { return ""; }
std::shared_ptr<GpuLink> open_gpu_link(Device, Comm&) { fail_without_library(); }
std::shared_ptr<GpuLink> open_gpu_link(Device, const GpuLink&) { fail_without_library(); }
void abort_exchanges(GpuLink&) { fail_without_library(); }
std::unique_ptr<Comm> make_gpu_comm(std::unique_ptr<Comm>, std::shared_ptr<GpuLink>) { fail_without_library(); }

}  // namespace mw
