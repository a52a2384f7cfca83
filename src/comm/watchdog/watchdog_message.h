// The progress messages ("beats") of the watchdog: one fixed-size message for both directions. The sender has proved
// that it belongs to the job; the values from the network are validated all the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/progress.h"

namespace mw {

enum class BeatKind : uint32_t {
  beat = 1,   // where the sender is
  leave = 2,  // the sender ends: no more messages will come
  end = 3     // rank 0 has printed the reason and ends the job
};

struct Beat {
  BeatKind kind = BeatKind::beat;
  int rank = 0;
  int64_t step = 0, collectives = 0, awaited = 0;  // as in ProgressNote
  double idle_seconds = 0;                         // since the rank last made progress
  std::string phase, call, host;                   // cut to what fits; printable
  // Only from rank 0, which hears all others: the rank that has been silent longest, of those that missed a beat.
  int quiet_rank = -1;  // none
  double quiet_seconds = 0;
};

// `idle_seconds`: how long the progress note has not changed.
Beat make_beat(int rank, const ProgressNote& note, double idle_seconds, const std::string& host);

constexpr size_t kBeatBytes = 184;
using BeatBytes = std::array<std::byte, kBeatBytes>;

BeatBytes encode(const Beat& beat);

// Returns none when the bytes are not a message from one of `ranks` ranks.
std::optional<Beat> decode(std::span<const std::byte, kBeatBytes> bytes, int ranks);

}  // namespace mw
