// The batched step where the device keeps the requests' state: what step.cpp does, but the host only decides who runs,
// and commits what comes back.
#include <chrono>
#include <iterator>
#include <new>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "engine/commit.h"
#include "engine/engine_impl.h"

namespace eagle31rt {

void Engine::Impl::check_not_lost() const {
  E31_CHECK(lost_reason_.empty(), kDevice, "the engine has lost its device: ", lost_reason_);
}

std::vector<StepOutput> Engine::Impl::step_on_device() {
  check_not_lost();
  const auto start = std::chrono::steady_clock::now();
  expire();
  choose_drafts();
  Schedule schedule = scheduler_->schedule();
  if (schedule.empty()) return std::exchange(expired_, {});
  try {
    for (const RequestState* request : schedule.entered) runner_->enter(*request);
    runner_->run(schedule.decode, schedule.prompts);
  } catch (const Error& error) {
    return fail_step(schedule, error.what());
  } catch (const std::bad_alloc&) {
    return fail_step(schedule, "there is no host memory left");
  }
  times_ = {.has_prompts = !schedule.prompts.empty()};
  collect_outcomes(schedule.decode);
  std::vector<StepOutput> outputs = commit(schedule.decode, runner_->results());
  for (StepOutput& output : commit(schedule.prompts, runner_->results())) outputs.push_back(std::move(output));
  for (const auto* list : {&schedule.decode, &schedule.prompts}) {
    for (const ScheduledRequest& entry : *list) entry.request->num_observed = entry.request->num_computed;
  }
  return finish_step(std::move(outputs), start);
}

// Nothing of the step was committed. Its requests have lost their place on the device, the others only if the device is
// gone altogether.
std::vector<StepOutput> Engine::Impl::fail_step(const Schedule& schedule, const std::string& reason) {
  try {
    device_.synchronize();
  } catch (const Error& error) {
    lost_reason_ = error.what();
  }
  std::vector<StepOutput> outputs = std::exchange(expired_, {});
  std::unordered_set<const RequestState*> failed(schedule.entered.begin(), schedule.entered.end());
  for (const auto* list : {&schedule.decode, &schedule.prompts}) {
    for (const ScheduledRequest& entry : *list) failed.insert(entry.request);
  }
  std::vector<StepOutput> ended =
      lost_reason_.empty() ? scheduler_->fail(failed, reason) : scheduler_->fail_all(reason);
  outputs.insert(outputs.end(), std::move_iterator(ended.begin()), std::move_iterator(ended.end()));
  return outputs;
}

}  // namespace eagle31rt
