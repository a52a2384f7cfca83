#include "comm/gpu_comm.h"

namespace mw {
namespace {

[[noreturn]] void fail_without_library() {
  fail(Exit::unsupported, "exchanges between GPUs need NCCL (NVIDIA) or RCCL (AMD), but this build has neither",
       "install the library of your GPUs and build again");
}

}  // namespace

std::string gpu_library() { return ""; }
std::shared_ptr<GpuLink> open_gpu_link(Device, Comm&) { fail_without_library(); }
std::shared_ptr<GpuLink> open_gpu_link(Device, const GpuLink&) { fail_without_library(); }
void abort_exchanges(GpuLink&) { fail_without_library(); }
// NOLINTNEXTLINE(performance-unnecessary-value-param): declared in gpu_comm.h for those who keep it
std::unique_ptr<Comm> make_gpu_comm(std::unique_ptr<Comm>, std::shared_ptr<GpuLink>) { fail_without_library(); }

}  // namespace mw
