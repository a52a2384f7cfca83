// Calibration on steps of a machine that is known: a profile whose rates are scaled.
#include "planner/calibrate.h"

#include <cstdio>
#include <fstream>

#include "planner/helpers.h"

namespace mw::test {
namespace {

constexpr double kCompute = 1.7, kUpdate = 0.6, kLinks = 0.4;

Request request_on(int ranks, const std::string& layout) {
  Request request;
  request.run = small_run();
  request.run.train.seq_len = 256;
  request.model = odd_model();
  request.run = with_layout(request.run, parse_layout(layout, {}));
  request.profile = shipped_profile("xeon_amx_2_cores");
  request.ranks = ranks;
  return request;
}

// The machine that was measured.
PlatformProfile real_machine(PlatformProfile p, int ranks) {
  for (RateTable* table : rate_tables(p))
    for (RatePoint& point : *table) point.per_second *= kCompute;
  p.elementwise_bytes_per_s *= kCompute;
  p.operator_latency_s /= kCompute;
  p.routing_latency_s /= kCompute;
  p.micro_batch_latency_s /= kCompute;
  p.stream_bytes_per_s *= kUpdate;
  for (LinkLevel& level : p.levels)
    for (LinkCost* cost : {&level.all_to_all, &level.ring, &level.message})
      if (level.ranks <= ranks) cost->bytes_per_s *= kLinks, cost->latency_s /= kLinks;
  return p;
}

StepTime time_of(Request request, const PlatformProfile& profile, const std::string& layout) {
  request.profile = profile;
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  return estimator.simulated(parse_layout(layout, layout_of(request.run))).time;
}

// `count` steps of what the request plans, as that machine would run them.
std::vector<MeasuredStep> steps_of(const Request& request, const StepTime& time, bool with_parts, size_t count = 9) {
  MeasuredStep step;
  step.ranks = request.ranks;
  step.layout = describe(layout_of(request.run));
  step.dtype = word_of(request.run.train.dtype);
  step.tokens = static_cast<double>(request.run.train.global_batch * request.run.train.seq_len);
  step.flops_per_token = 3 * forward_flops_per_token(request.model, request.run.train.seq_len);
  step.seconds = time.total();
  if (with_parts) step.parts = {time.compute, time.exchange + time.bubble, time.optimizer};
  std::vector<MeasuredStep> steps(count, step);
  steps.front().seconds *= 5;  // one that something else disturbed
  return steps;
}

TEST(Calibration, FindsTheMachineFromTheParts) {
  for (const char* layout : {"ep=2 micro_batches=4", "ep=2 zero=1", "tp=2 ep=2", "pp=2 micro_batches=8",
                             "pp=2 schedule=zb_h1 micro_batches=8"}) {
    const Request request = request_on(2, layout);
    const PlatformProfile truth = real_machine(request.profile, 2);
    const StepTime measured = time_of(request, truth, "");
    const Calibration found = calibrate(request, steps_of(request, measured, true), "metrics.jsonl");
    EXPECT_NEAR(time_of(request, found.profile, "").total() / measured.total(), 1, 1e-4) << layout;
    EXPECT_NEAR(found.profile.bf16.dense_products[0].per_second / truth.bf16.dense_products[0].per_second, 1, 5e-3)
        << layout;
    EXPECT_NEAR(found.profile.levels[0].ring.bytes_per_s / truth.levels[0].ring.bytes_per_s, 1, 1e-2) << layout;
    // Links that these ranks do not use stay.
    EXPECT_EQ(found.profile.levels[1], request.profile.levels[1]);
    // What was learned holds for other layouts.
    for (const char* other :
         {"tp=1 ep=2 pp=1 micro_batches=12 recompute=full schedule=1f1b", "tp=2 ep=1 pp=1 zero=0 schedule=1f1b"})
      EXPECT_NEAR(time_of(request, found.profile, other).total() / time_of(request, truth, other).total(), 1, 1e-2)
          << layout << " then " << other;
  }
}

// As on GPUs, which time one step in a hundred.
TEST(Calibration, TakesThePartsOfTheStepsThatHaveThem) {
  const Request request = request_on(2, "ep=2 micro_batches=4");
  const StepTime measured = time_of(request, real_machine(request.profile, 2), "");
  std::vector<MeasuredStep> steps = steps_of(request, measured, false);
  steps[4].parts = steps_of(request, measured, true)[4].parts;
  EXPECT_EQ(calibrate(request, steps, "m").profile.levels,
            calibrate(request, steps_of(request, measured, true), "m").profile.levels);
}

TEST(Calibration, MeetsTheStepWithoutParts) {
  const Request request = request_on(2, "ep=2 micro_batches=4");
  const StepTime measured = time_of(request, real_machine(request.profile, 2), "");
  const Calibration found = calibrate(request, steps_of(request, measured, false), "metrics.jsonl");
  EXPECT_NEAR(time_of(request, found.profile, "").total() / measured.total(), 1, 1e-4);
  EXPECT_EQ(found.profile.levels, request.profile.levels);
  EXPECT_EQ(found.profile.stream_bytes_per_s, request.profile.stream_bytes_per_s);
  EXPECT_EQ(found.profile.sources.size(), request.profile.sources.size() + 1);
  EXPECT_TRUE(found.profile.sources.back().starts_with("calibrated on 9 steps of pp=1"));
  // As a file it is still a profile.
  EXPECT_EQ(parse_platform_profile(to_json(found.profile), "written"), found.profile);
}

TEST(Calibration, KeepsSharesByHeadWidth) {
  Request request = request_on(1, "micro_batches=4");
  request.profile.bf16.attention_forward_widths = request.profile.bf16.attention_backward_widths = {{8, 0.3}, {64, 1}};
  const PlatformProfile truth = real_machine(request.profile, 1);
  const StepTime measured = time_of(request, truth, "");
  const Calibration found = calibrate(request, steps_of(request, measured, true), "metrics.jsonl");
  EXPECT_EQ(found.profile.bf16.attention_forward_widths, request.profile.bf16.attention_forward_widths);
  EXPECT_EQ(found.profile.bf16.attention_backward_widths, request.profile.bf16.attention_backward_widths);
  EXPECT_NEAR(found.profile.bf16.attention_forward[0].per_second / truth.bf16.attention_forward[0].per_second, 1, 5e-3);
}

TEST(Calibration, OneRankHasNoLinks) {
  const Request request = request_on(1, "micro_batches=4");
  const StepTime measured = time_of(request, real_machine(request.profile, 1), "");
  const Calibration found = calibrate(request, steps_of(request, measured, true), "metrics.jsonl");
  EXPECT_EQ(found.profile.levels, request.profile.levels);
  EXPECT_NEAR(time_of(request, found.profile, "").total() / measured.total(), 1, 1e-4);
}

// A profile that was measured while links were busy: no rate of compute meets a run that had them alone.
TEST(Calibration, ScalesAllAlikeWhereNoPartMeetsTheStep) {
  Request request = request_on(2, "ep=2 micro_batches=4");
  const StepTime measured = time_of(request, request.profile, "");
  for (LinkLevel& level : request.profile.levels)
    for (LinkCost* cost : {&level.all_to_all, &level.ring, &level.message})
      cost->bytes_per_s /= 60, cost->latency_s *= 60;
  const StepTime planned = time_of(request, request.profile, "");
  ASSERT_GT(planned.exchange, measured.total());
  ASSERT_LT(planned.total(), 30 * measured.total());
  const Calibration found = calibrate(request, steps_of(request, measured, false), "metrics.jsonl");
  EXPECT_NEAR(time_of(request, found.profile, "").total() / measured.total(), 1, 1e-4);
}

std::string refusal(const Request& request, const std::vector<MeasuredStep>& steps) {
  try {
    calibrate(request, steps, "metrics.jsonl");
  } catch (const Error& error) {
    EXPECT_FALSE(error.hint().empty());
    return error.what();
  }
  return "";
}

TEST(Calibration, RefusesOtherRunsAndImpossibleSteps) {
  const Request request = request_on(2, "ep=2 micro_batches=4");
  const StepTime time = time_of(request, request.profile, "");
  const std::vector<MeasuredStep> steps = steps_of(request, time, true);
  EXPECT_EQ(refusal(request, steps), "");
  for (const char* other : {"ep=1", "micro_batches=8", "zero=1", "recompute=moe"}) {
    Request changed = request;
    changed.run = with_layout(request.run, parse_layout(other, layout_of(request.run)));
    EXPECT_NE(refusal(changed, steps).find("is of another run"), std::string::npos) << other;
  }
  for (const auto change :
       {+[](MeasuredStep& s) { s.ranks = 4; }, +[](MeasuredStep& s) { s.dtype = "fp32"; },
        +[](MeasuredStep& s) { s.tokens *= 2; }, +[](MeasuredStep& s) { s.flops_per_token += 1; }}) {
    std::vector<MeasuredStep> changed = steps;
    for (MeasuredStep& step : changed) change(step);
    EXPECT_NE(refusal(request, changed).find("is of another run"), std::string::npos);
  }
  EXPECT_NE(refusal(request, steps_of(request, time, true, 4)).find("has 4 measured steps of this run"),
            std::string::npos);
  for (const double factor : {1e-3, 1e3}) {
    std::vector<MeasuredStep> changed = steps;
    for (MeasuredStep& step : changed) step.seconds *= factor, step.parts.reset();
    EXPECT_NE(refusal(request, changed).find("another machine"), std::string::npos) << factor;
    for (MeasuredStep& step : changed) step.parts = {time.compute * factor, 0, 0};
    EXPECT_NE(refusal(request, changed).find("so the profile seems to be of another machine"), std::string::npos)
        << factor;
  }
}

std::string read_error(const std::string& text) {
  const std::string path = testing::TempDir() + "calibrate_metrics.jsonl";
  std::ofstream(path) << text;
  std::string message;
  try {
    read_measured_steps(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::data);
    EXPECT_FALSE(error.hint().empty()) << text;
    message = error.what();
  }
  std::remove(path.c_str());
  return message;
}

TEST(Calibration, ReadsStepsBehindTheFirstAndRefusesWhatIsNone) {
  const std::string good =
      R"({"step": 1, "step_ms": 5, "ranks": 2, "layout": "pp=1", "dtype": "bf16", "tokens": 8, "flops_per_token": 9})"
      "\n";
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string line = good;
    return good + good + good + line.replace(line.find(from), from.size(), to);
  };
  EXPECT_EQ(read_error(good + good + good + good), "");
  EXPECT_EQ(read_error(good + good + good + good + "{\"step\": 5, \"st"), "");  // being written
  EXPECT_EQ(read_error(good + good + good + good + "{\"step\": 5, \"final_val_loss\": 1}\n"), "");
  for (const std::string& text : {std::string(), good, good + good + good, std::string("{\"step\": 1, \"st")})
    EXPECT_NE(read_error(text).find("has no step after the first"), std::string::npos) << text;
  for (const auto& [from, to, expected] : std::vector<std::array<std::string, 3>>{
           {"\"step_ms\": 5", "\"step_ms\": -5", "\"step_ms\" is -5"},
           {"\"step_ms\": 5", "\"step_ms\": null", "\"step_ms\" is missing or not a number"},
           {"\"step_ms\": 5", "\"step_ms\": 1e300", "\"step_ms\" is 1e+300"},
           {"\"ranks\": 2", "\"ranks\": 0", "\"ranks\" is 0"},
           {"\"layout\": \"pp=1\", ", "", "\"layout\" is missing or not a string"},
           {"\"step\": 1, ", "", "\"step\" is missing"},
           {"\"tokens\": 8", "\"tokens\": \"8\"", "\"tokens\" is missing or not a number"},
           {"\"ranks\": 2", "\"measured_ms\": 3, \"ranks\": 2", "\"measured_ms\" is not an object"},
           {"\"ranks\": 2", "\"measured_ms\": {\"compute\": 3}, \"ranks\": 2",
            "\"waiting\" is missing or not a number"},
           {"{\"step\"", "[\"step\"", "line 4"},
           {"\"ranks\": 2", "\"ranks\": 2,", "line 4"}})
    EXPECT_NE(read_error(changed(from, to)).find(expected), std::string::npos)
        << to << ": " << read_error(changed(from, to));
}

}  // namespace
}  // namespace mw::test
