#include "comm/watchdog/watchdog_message.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"

namespace mw {
namespace {

constexpr uint64_t kMagic = 0x32474f4454415747;

// As it travels, in the byte order of the job's machines, which MPI asks to be the same.
struct Wire {
  uint64_t magic;
  uint32_t kind;
  int32_t rank;
  int64_t step, collectives, awaited;
  double idle_seconds;
  int32_t quiet_rank;
  float quiet_seconds;
  char phase[40], call[24], host[64];
};
static_assert(sizeof(Wire) == kBeatBytes);

template <size_t N>
void put_text(char (&field)[N], const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), field);
}

template <size_t N>
std::string get_text(const char (&field)[N]) {
  return printable(std::string_view(field, strnlen(field, N)));
}

}  // namespace

Beat make_beat(int rank, const ProgressNote& note, double idle_seconds, const std::string& host) {
  return {.rank = rank,
          .step = note.step,
          .collectives = note.collectives,
          .awaited = note.awaited,
          .idle_seconds = idle_seconds,
          .phase = note.phase,
          .call = note.call,
          .host = host};
}

BeatBytes encode(const Beat& beat) {
  Wire wire{};
  wire.magic = kMagic;
  wire.kind = static_cast<uint32_t>(beat.kind);
  wire.rank = beat.rank;
  wire.step = beat.step;
  wire.collectives = beat.collectives;
  wire.awaited = beat.awaited;
  wire.idle_seconds = beat.idle_seconds;
  wire.quiet_rank = beat.quiet_rank;
  wire.quiet_seconds = static_cast<float>(beat.quiet_seconds);
  put_text(wire.phase, beat.phase);
  put_text(wire.call, beat.call);
  put_text(wire.host, beat.host);
  BeatBytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

std::optional<Beat> decode(std::span<const std::byte, kBeatBytes> bytes, int ranks) {
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  if (wire.magic != kMagic || wire.rank < 0 || wire.rank >= ranks || wire.kind < 1 || wire.kind > 3)
    return std::nullopt;
  if (wire.step < 0 || wire.collectives < 0 || wire.awaited < 0 || !is_time(wire.idle_seconds)) return std::nullopt;
  if (wire.quiet_rank < -1 || wire.quiet_rank >= ranks || !is_time(wire.quiet_seconds)) return std::nullopt;
  return Beat{static_cast<BeatKind>(wire.kind),
              wire.rank,
              wire.step,
              wire.collectives,
              wire.awaited,
              wire.idle_seconds,
              get_text(wire.phase),
              get_text(wire.call),
              get_text(wire.host),
              wire.quiet_rank,
              wire.quiet_seconds};
}

}  // namespace mw
