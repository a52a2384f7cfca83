#include "config/hf_rope.h"

#include <algorithm>
#include <cmath>

namespace mw {
namespace {

using nlohmann::json;

std::string rope_type(const HfFields& rope) {
  std::optional<std::string> type;
  for (const char* key : {"rope_type", "type"}) {
    if (!rope.has(key)) continue;
    const std::string value = rope.text(key);
    if (type && *type != value)
      rope.wrong(key, fmt::format("the value of its other name, \"{}\"", printable(*type)), rope.raw(key));
    type = value;
  }
  return type.value_or("default");
}

// A number of positions beside the object counts, not that in it.
YarnSpec read_yarn(const HfFields& config, const HfFields& rope) {
  if (rope.has("attention_factor")) rope.unsupported("YaRN with attention_factor");
  YarnSpec yarn;
  yarn.factor = rope.real("factor");
  const char* const positions = "original_max_position_embeddings";
  yarn.positions = config.has(positions) ? config.integer(positions) : rope.integer(positions);
  yarn.mscale = rope.real_or("mscale", 0);
  yarn.mscale_all_dim = rope.real_or("mscale_all_dim", 0);
  yarn.beta_fast = rope.real_or("beta_fast", 32);
  yarn.beta_slow = rope.real_or("beta_slow", 1);
  yarn.truncate = !rope.is_null("truncate") && rope.flag_or("truncate", true);
  if (yarn.factor == 1) return YarnSpec{};  // stretches nothing
  return yarn;
}

double stretch_of(const HfFields& rope, int64_t head_dim) {
  const double alpha = rope.real("alpha");
  if (!(alpha > 0 && alpha <= 1e6)) rope.wrong("alpha", "a number above 0, at most 1e6", alpha);
  return std::pow(alpha, static_cast<double>(head_dim) / static_cast<double>(head_dim - 2));
}

}  // namespace

HfRope read_hf_rope(const HfFields& config, int64_t alpha_of_head) {
  std::optional<double> theta, partial;
  double stretch = 1;  // of theta
  std::optional<YarnSpec> yarn;
  bool has_type = false;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    const json& object = config.raw(key);
    if (!object.is_object()) config.wrong(key, "null or an object", object);
    if (std::any_of(object.begin(), object.end(), [](const json& value) { return value.is_object(); }))
      config.unsupported(fmt::format("{} for each kind of layer", key));
    const HfFields rope(object, fmt::format("{}: {}", config.where(), key));
    const std::string type = rope_type(rope);
    has_type |= rope.has("rope_type") || rope.has("type");
    const bool by_alpha = type == "dynamic" && alpha_of_head > 2 && rope.has("alpha");
    if (type != "default" && type != "yarn" && !by_alpha)
      config.unsupported(fmt::format("rope type \"{}\"", printable(type)));
    if (by_alpha) stretch = stretch_of(rope, alpha_of_head);
    const YarnSpec found = type == "yarn" ? read_yarn(config, rope) : YarnSpec{};
    if (yarn && !(*yarn == found)) config.wrong(key, "the same values as rope_parameters", object);
    yarn = found;
    if (rope.has("rope_theta")) theta = rope.real("rope_theta");
    if (rope.has("partial_rotary_factor")) partial = rope.real("partial_rotary_factor");
  }
  if (config.has("rope_theta")) {
    const double outer = config.real("rope_theta");
    if (theta && *theta != outer)
      config.wrong("rope_theta", fmt::format("{}, as in rope_parameters", *theta), config.raw("rope_theta"));
    theta = outer;
  }
  // transformers 5 may write its default beside the factor that counts, inside rope_parameters.
  if (!partial && config.has("partial_rotary_factor")) partial = config.real("partial_rotary_factor");
  return {(theta ? *theta : config.real("rope_theta")) * stretch, yarn.value_or(YarnSpec{}), partial, has_type};
}

nlohmann::ordered_json write_hf_rope_scaling(const YarnSpec& yarn) {
  if (yarn.factor == 1) return nullptr;
  nlohmann::ordered_json out;
  out["type"] = "yarn";
  out["factor"] = yarn.factor;
  if (yarn.mscale > 0) out["mscale"] = yarn.mscale;
  if (yarn.mscale_all_dim > 0) out["mscale_all_dim"] = yarn.mscale_all_dim;
  out["beta_fast"] = yarn.beta_fast;
  out["beta_slow"] = yarn.beta_slow;
  out["original_max_position_embeddings"] = yarn.positions;
  if (!yarn.truncate) out["truncate"] = false;
  return out;
}

}  // namespace mw
