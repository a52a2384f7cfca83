// What a rank of a pipeline keeps alive, without the whole schedule.
#include "planner/pipelines.h"

#include "layout/stages.h"
#include "planner/helpers.h"
#include "planner/layout.h"

namespace mw::test {
namespace {

// Long steps are looked up as shorter ones.
TEST(Pipelines, KeepAsManyAliveAsTheWholeSchedule) {
  const ModelSpec model = config_model("qwen3-30b-a3b");
  Pipelines pipelines(model, 4096, "");
  for (const char* text : {"pp=4", "pp=4 schedule=interleaved chunks=3", "pp=6 schedule=interleaved",
                           "pp=4 schedule=zb_h1", "pp=5 schedule=zb_v", "pp=3 schedule=gpipe"})
    for (const int64_t micro_batches : {1, 7, 40, 81, 126}) {
      Layout layout = parse_layout(text, {});
      layout.micro_batches = micro_batches;
      const Schedule schedule = make_schedule(layout.pipeline());
      const std::vector<int64_t> first = split_layers(model, layout.pipeline(), 4096, "");
      for (int rank = 0; rank < layout.pp; ++rank)
        EXPECT_EQ(pipelines.stages_of(layout)[static_cast<size_t>(rank)], plan_stages(schedule, rank, first))
            << describe(layout) << " rank " << rank;
    }
}

}  // namespace
}  // namespace mw::test
