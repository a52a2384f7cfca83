// Stands in for NCCL: moves nothing, and writes down what it was asked for.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

struct NcclStandIn {
  int id = 0;
};
using ncclComm_t = NcclStandIn*;
struct ncclUniqueId {
  char bytes[16] = {};
};
enum ncclResult_t { ncclSuccess = 0, ncclRemoteError = 6 };
enum ncclDataType_t { ncclUint8 = 1, ncclFloat32 = 7 };
enum ncclRedOp_t { ncclSum = 0 };

struct NcclCalls {
  std::vector<std::string> list;
  int groups = 0;   // made so far
  int failing = 0;  // of which this one has met an error; 0: none
  bool sends = true;
};
inline NcclCalls nccl_calls;

inline ncclResult_t nccl_note(const std::string& text, const ncclComm_t comm = nullptr) {
  nccl_calls.list.push_back(comm == nullptr ? text : text + " of " + std::to_string(comm->id));
  return ncclSuccess;
}
inline std::string nccl_count(size_t count, int peer) { return std::to_string(count) + " " + std::to_string(peer); }

inline const char* ncclGetErrorString(ncclResult_t) { return "an error"; }
inline const char* ncclGetLastError(ncclComm_t) { return "the last error"; }
inline ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
inline ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return ncclSuccess; }
inline ncclResult_t ncclCommInitRank(ncclComm_t* comm, int, ncclUniqueId, int) {
  *comm = new NcclStandIn{++nccl_calls.groups};
  return ncclSuccess;
}
inline ncclResult_t ncclCommAbort(ncclComm_t comm) {
  nccl_note("abort", comm);
  delete comm;
  return ncclSuccess;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  nccl_note("destroy", comm);
  delete comm;
  return ncclSuccess;
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->id == nccl_calls.failing ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
inline ncclResult_t ncclGroupStart() { return nccl_note("["); }
inline ncclResult_t ncclGroupEnd() { return nccl_note("]"); }
inline ncclResult_t ncclSend(const void*, size_t count, ncclDataType_t, int peer, ncclComm_t, void*) {
  nccl_note("send " + nccl_count(count, peer));
  return nccl_calls.sends ? ncclSuccess : ncclRemoteError;
}
inline ncclResult_t ncclRecv(void*, size_t count, ncclDataType_t, int peer, ncclComm_t, void*) {
  return nccl_note("receive " + nccl_count(count, peer));
}
inline ncclResult_t ncclAllReduce(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, void*) {
  return nccl_note("all_reduce " + std::to_string(count));
}
inline ncclResult_t ncclReduceScatter(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                      void*) {
  return nccl_note("reduce_scatter " + std::to_string(count));
}
inline ncclResult_t ncclAllGather(const void*, void*, size_t count, ncclDataType_t, ncclComm_t, void*) {
  return nccl_note("all_gather " + std::to_string(count));
}
inline ncclResult_t ncclReduce(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, int root, ncclComm_t,
                               void*) {
  return nccl_note("reduce " + nccl_count(count, root));
}
inline ncclResult_t ncclBroadcast(const void*, void*, size_t count, ncclDataType_t, int root, ncclComm_t, void*) {
  return nccl_note("broadcast " + nccl_count(count, root));
}
