// The tensors of a checkpoint under canonical names.
#include "base/check.h"
#include "base/json.h"
#include "model/weight_loader.h"

namespace eagle31rt {

std::string strip_model_prefix(const std::string& name) { return name.starts_with("model.") ? name.substr(6) : name; }

CanonicalNames::CanonicalNames(const Checkpoint& checkpoint,
                               const std::function<std::string(const std::string&)>& canonical)
    : checkpoint_(checkpoint) {
  for (const auto& [name, entry] : checkpoint.tensors()) {
    const std::string key = canonical(name);
    if (key.empty()) continue;
    const auto [found, added] = tensors_.emplace(key, &entry);
    E31_CHECK(added, kCheckpoint, checkpoint.directory(), ": tensors ", quote(found->second->name), " and ",
              quote(name), " are the same weight; remove one");
  }
}

const TensorEntry* CanonicalNames::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

const TensorEntry* CanonicalNames::find_containing(const std::string& part) const {
  for (const auto& [name, entry] : tensors_) {
    if (name.find(part) != name.npos) return entry;
  }
  return nullptr;
}

}  // namespace eagle31rt
