// The tensors of a checkpoint under canonical names.
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "model/weight_loader.h"

namespace eagle31rt {

std::string_view strip_model_prefix(std::string_view name) {
  return name.starts_with("model.") ? name.substr(6) : name;
}

CanonicalNames::CanonicalNames(const Checkpoint& checkpoint,
                               const std::function<std::string_view(const std::string&, std::string&)>& canonical)
    : checkpoint_(checkpoint) {
  tensors_.reserve(checkpoint.tensors().size());
  for (const TensorEntry& entry : checkpoint.tensors()) {
    std::string written;
    std::string_view key = canonical(entry.name, written);
    if (key.empty()) continue;
    if (!written.empty()) key = written_.emplace_back(std::move(written));
    const auto [found, added] = tensors_.emplace(key, &entry);
    E31_CHECK(added, kCheckpoint, checkpoint.directory(), ": tensors ", quote(found->second->name), " and ",
              quote(entry.name), " are the same weight; remove one");
  }
}

const TensorEntry* CanonicalNames::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

const TensorEntry* CanonicalNames::find_containing(const std::string& part) const {
  const TensorEntry* first = nullptr;  // by name, so that messages do not depend on the order of the table
  for (const auto& [name, entry] : tensors_) {
    if (name.find(part) != name.npos && (first == nullptr || entry->name < first->name)) first = entry;
  }
  return first;
}

}  // namespace eagle31rt
