// Walks through the metrics.jsonl of a run.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mw {

constexpr size_t kPreparingSteps = 3;  // that a run takes longer for

// Hands on the steps among the last `most` lines of `text`, the metrics.jsonl at `path`, but for the first ones of the
// file. A last line without its end is passed over: the run may be writing it. where: "PATH, line N". Errors: data,
// with path and line, for what is no JSON or no step.
void for_each_step(std::string_view text, const std::string& path, size_t most,
                   const std::function<void(const nlohmann::json& step, const std::string& where)>& take);

}  // namespace mw
