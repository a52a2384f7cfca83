// Weighs layouts in closed form, without those that cannot fit because another one does not.
#pragma once

#include <functional>
#include <vector>

#include "planner/search.h"

namespace mw {

// Calls body(estimator, index) for every layout on up to 16 threads, one for each core of this process. Layouts that
// share what an estimator remembers are one thread's. The first error is thrown.
void for_each_estimated(const Request& request, const std::vector<Layout>& layouts,
                        const std::function<void(Estimator&, size_t)>& body);

// Whether `more` needs at least as much memory as `less`, up to a few buffers: it has fewer micro-batches, recomputes
// less, or shards no optimizer states, and differs in nothing else.
bool needs_no_less(const Layout& more, const Layout& less);

// The layouts in closed form, in their order, but for those that need no less than one that is too big by 5 % of the
// memory. fits: set to whether one fits with the margin, and nothing more is weighed once one does. Deterministic
// without `fits`.
std::vector<Weighed> weigh(const Request& request, const std::vector<Layout>& layouts, bool* fits = nullptr);

}  // namespace mw
