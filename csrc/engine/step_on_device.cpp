// The batched step where the device keeps the requests' state: what step.cpp does, but the host only decides who runs,
// and commits what comes back.
#include <chrono>
#include <new>

#include "base/check.h"
#include "engine/commit.h"
#include "engine/engine_impl.h"

namespace eagle31rt {

void Engine::Impl::check_not_lost() const {
  E31_CHECK(lost_reason_.empty(), kDevice, "the engine has lost its device: ", lost_reason_);
}

// Requests that are new to the device, or were begun by step_simple(), take a slot of its state.
std::vector<RequestState*> Engine::Impl::enter_running() {
  std::vector<RequestState*> entered;
  for (const auto& request : running_) {
    if (request->slot >= 0) continue;
    take_slot(*request);
    request->is_drafting = draft_ && request->num_speculative_tokens > 0 && request->num_computed == 0;
    entered.push_back(request.get());
  }
  return entered;
}

std::vector<StepOutput> Engine::Impl::step_on_device() {
  check_not_lost();
  const auto start = std::chrono::steady_clock::now();
  admit(/*with_drafter=*/false);
  if (running_.empty()) return {};
  const std::vector<RequestState*> entered = enter_running();
  std::vector<ScheduledRequest> decode = schedule_decode(), prompts;
  schedule_prefill(prompts);
  const auto fail_all = [&](const std::string& reason) {
    std::unordered_set<const RequestState*> failed(entered.begin(), entered.end());
    for (const auto* list : {&decode, &prompts}) {
      for (const ScheduledRequest& entry : *list) failed.insert(entry.request);
    }
    return fail_step(reason, failed);
  };
  try {
    for (const RequestState* request : entered) runner_->enter(*request);
    runner_->run(decode, prompts);
  } catch (const Error& error) {
    return fail_all(error.what());
  } catch (const std::bad_alloc&) {
    return fail_all("there is no host memory left");
  }
  std::vector<StepOutput> outputs = commit(decode, runner_->results());
  for (StepOutput& output : commit(prompts, runner_->results())) outputs.push_back(std::move(output));
  retire_finished();
  profile_.num_steps += 1;
  profile_.step += (std::chrono::steady_clock::now() - start).count();
  return outputs;
}

// Nothing of the step was committed. Its requests have lost their place on the device, the others only if the device is
// gone altogether.
std::vector<StepOutput> Engine::Impl::fail_step(const std::string& reason,
                                                const std::unordered_set<const RequestState*>& failed) {
  try {
    device_.synchronize();
  } catch (const Error& error) {
    lost_reason_ = error.what();
  }
  std::vector<StepOutput> outputs;
  for (const auto& request : running_) {
    if (lost_reason_.empty() && failed.count(request.get()) == 0) continue;
    commit_error(*request, reason, outputs.emplace_back());
  }
  retire_finished();
  if (lost_reason_.empty()) return outputs;
  for (const auto& request : waiting_) {
    commit_error(*request, reason, outputs.emplace_back());
    ids_.erase(request->id);
  }
  waiting_.clear();
  return outputs;
}

}  // namespace eagle31rt
