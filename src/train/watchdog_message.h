// What ranks tell each other about where they are: one message of fixed size, both ways. Bytes come from the network:
// the sender has proved that it belongs to the job, the values are checked all the same.
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
  leave = 2,  // it ends: nothing more will come
  end = 3     // rank 0 has told the reason and ends the job
};

struct Beat {
  BeatKind kind = BeatKind::beat;
  int rank = 0;
  int64_t step = 0, collectives = 0, awaited = 0;  // as in ProgressNote
  double idle_seconds = 0;                         // since the rank last moved
  std::string phase, call, host;                   // cut to what fits; printable
  // From rank 0, which alone hears the others: of those that missed a beat the one that is silent for longest.
  int quiet_rank = -1;  // none
  double quiet_seconds = 0;
};

// `idle_seconds`: for how long the note has been the same.
Beat make_beat(int rank, const ProgressNote& note, double idle_seconds, const std::string& host);

constexpr size_t kBeatBytes = 184;
using BeatBytes = std::array<std::byte, kBeatBytes>;

BeatBytes encode(const Beat& beat);

// None: not a message from one of `ranks` ranks.
std::optional<Beat> decode(std::span<const std::byte, kBeatBytes> bytes, int ranks);

}  // namespace mw
