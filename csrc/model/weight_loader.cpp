#include "model/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "model/centred_norm.h"
#include "model/mla_weights.h"
#include "model/stored_matrix.h"

namespace eagle31rt {
namespace {

constexpr size_t kNamesInMessage = 4;
constexpr size_t kStagingBytes = size_t{16} << 20;  // long enough to hide what a copy costs to start

int64_t total_rows(const std::vector<TensorPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const TensorPart& part) { return sum + part.rows; });
}

std::string shape_text(const std::vector<int64_t>& shape) {
  TensorEntry entry;
  entry.shape = shape;
  return entry.shape_string();
}

// "a", "b" and 3 more
std::string list_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesInMessage); ++i) text += (i == 0 ? "" : ", ") + quote(names[i]);
  if (names.size() > kNamesInMessage) text += concat(" and ", names.size() - kNamesInMessage, " more");
  return text;
}

void check_entry(const TensorEntry& entry, const RowSource::Tensor& wanted, const std::string& source) {
  const bool plain = wanted.dtype_name.empty();
  E31_CHECK(plain ? entry.supported_dtype && is_floating_point(entry.dtype) : entry.dtype_name == wanted.dtype_name,
            kUnsupported, source, ": tensor ", quote(entry.name), " has dtype ", entry.dtype_name, "; ",
            plain ? "weights must be F32, BF16 or F16, unless config.json has a quantization_config for them"
                  : "it must be " + wanted.dtype_name);
  E31_CHECK(entry.shape == wanted.shape, kCheckpoint, source, ": tensor ", quote(entry.name), " has shape ",
            entry.shape_string(), ", but config.json asks for ", shape_text(wanted.shape));
}

void check_finite(int64_t num_bad, const TensorEntry& entry, DType dtype, const std::string& source) {
  E31_CHECK(num_bad == 0, kCheckpoint, source, ": tensor ", quote(entry.name), " (", entry.dtype_name, ") has ",
            num_bad, " values that are NaN or infinite as ", dtype_name(dtype),
            entry.dtype == dtype ? "; the file is broken" : "; load it in its own dtype or check the file");
}

}  // namespace

void RowSource::read_codes(std::span<const TensorEntry* const> /*entries*/, int64_t /*first_row*/, int64_t /*num_rows*/,
                           uint8_t* /*codes*/, float* /*scales*/) const {
  fail(ErrorCode::kInternal, "a source without a quantised form was asked for codes");
}

WeightLoader::WeightLoader(const CanonicalNames& names, DType dtype, Device& device,
                           const std::optional<QuantisedFormat>& quantised)
    : names_(names),
      dtype_(dtype),
      device_(device),
      quantised_(quantised),
      layout_(device.kind() == DeviceKind::kCpu ? WeightLayout::kPanels : WeightLayout::kRowMajor) {}

void WeightLoader::add_matrices(std::vector<PackedWeight>& destinations,
                                const std::function<std::vector<TensorPart>(int64_t)>& parts_of, int64_t columns) {
  const size_t first = matrices_.size();
  for (size_t i = 0; i < destinations.size(); ++i) {
    add_matrix(destinations[i], parts_of(static_cast<int64_t>(i)), columns);
  }
  const auto own = std::span(matrices_).subspan(first);
  const bool equal =
      std::all_of(own.begin(), own.end(), [&](const MatrixPlan& plan) { return plan.form == own[0].form; });
  if (equal) return;
  for (MatrixPlan& plan : own) plan.form = {};
}

void WeightLoader::add_matrix(PackedWeight& destination, std::vector<TensorPart> parts, int64_t columns,
                              Storage storage) {
  if (quantised_) {
    for (TensorPart& part : parts) {
      if (part.source != nullptr) continue;
      const auto stored = quantised_matrix(names_, *quantised_, part.name, part.rows, columns);
      if (stored) part.source = std::make_shared<MatrixPart>(stored, MatrixPart::Layout{0, columns});
    }
  }
  WeightForm form;  // not quantised unless all parts have one form and this device kernels for it
  bool as_stored = storage == Storage::kAsStored;
  for (const TensorPart& part : parts) {
    const auto entries = want(part, {part.rows, columns}, wanted_of_matrices_);
    const WeightForm own = part.source == nullptr ? WeightForm{} : part.source->form(entries);
    if (&part == &parts.front()) form = own;
    as_stored = as_stored && own == form;
  }
  if (!as_stored || !form.is_quantised() || !has_kernels(form, layout_)) form = {};
  matrices_.push_back({&destination, std::move(parts), columns, form});
}

std::shared_ptr<const StoredMatrix> WeightLoader::matrix(const std::string& name, int64_t rows, int64_t columns) const {
  return stored_matrix(names_, quantised_, name, rows, columns);
}

void WeightLoader::add_vector(Vector& destination, std::vector<TensorPart> parts) {
  for (const TensorPart& part : parts) want(part, {part.rows}, wanted_of_vectors_);
  vectors_.push_back({&destination, std::move(parts)});
}

void WeightLoader::for_each_part(const std::function<void(const WeightPart&)>& visit) const {
  for (const MatrixPlan& plan : matrices_) {
    for (const TensorPart& part : plan.parts) visit({part.name, part.rows, plan.columns, true, plan.form});
  }
  for (const VectorPlan& plan : vectors_) {
    for (const TensorPart& part : plan.parts) visit({part.name, part.rows, 1, false, {}});
  }
}

std::vector<const TensorEntry*> WeightLoader::want(const TensorPart& part, const std::vector<int64_t>& shape,
                                                   std::vector<WantedTensor>& wanted) const {
  const size_t first = wanted.size();
  if (part.source == nullptr) {
    wanted.push_back({{part.name, shape}, names_.find(part.name)});
  } else {
    for (RowSource::Tensor& tensor : part.source->tensors()) {
      const TensorEntry* entry = names_.find(tensor.name);
      wanted.push_back({std::move(tensor), entry});
    }
  }
  std::vector<const TensorEntry*> entries;
  for (size_t i = first; i < wanted.size(); ++i) entries.push_back(wanted[i].entry);
  return entries;
}

void WeightLoader::for_each_wanted(const std::function<void(const WantedTensor&)>& visit) const {
  for (const auto* wanted : {&wanted_of_matrices_, &wanted_of_vectors_}) {
    for (const WantedTensor& one : *wanted) visit(one);
  }
}

void WeightLoader::check_shapes() const {
  for_each_wanted([&](const WantedTensor& one) {
    if (one.entry != nullptr) check_entry(*one.entry, one.tensor, names_.checkpoint().directory());
  });
}

void WeightLoader::check_missing() const {
  std::vector<std::string> missing;
  std::set<std::string> seen;
  for_each_wanted([&](const WantedTensor& one) {
    if (one.entry == nullptr && seen.insert(one.tensor.name).second) missing.push_back(one.tensor.name);
  });
  E31_CHECK(missing.empty(), kCheckpoint, names_.checkpoint().directory(), " lacks the tensor(s) ", list_names(missing),
            " (with or without the prefix \"model.\"); it is incomplete, or config.json is that of another model");
}

void WeightLoader::check_unused() const {
  std::vector<const TensorEntry*> used;
  for_each_wanted([&](const WantedTensor& one) {
    if (one.entry != nullptr) used.push_back(one.entry);
  });
  std::ranges::sort(used);
  used.erase(std::unique(used.begin(), used.end()), used.end());
  if (used.size() == names_.tensors().size()) return;
  std::vector<std::string> unused;
  for (const auto& [name, entry] : names_.tensors()) {
    if (!std::ranges::binary_search(used, entry)) unused.push_back(entry->name);
  }
  std::sort(unused.begin(), unused.end());
  E31_CHECK(unused.empty(), kCheckpoint, names_.checkpoint().directory(),
            " has tensor(s) that config.json does not ask for: ", list_names(unused),
            "; the model has a part that would be ignored, so it is refused");
}

std::vector<const TensorEntry*> WeightLoader::entries_of(const TensorPart& part) const {
  if (part.source == nullptr) return {names_.find(part.name)};
  std::vector<const TensorEntry*> entries;
  for (const RowSource::Tensor& tensor : part.source->tensors()) entries.push_back(names_.find(tensor.name));
  return entries;
}

namespace {

struct RowRange {
  const TensorPart& part;
  int64_t first, count;
};

// The rows as codes and scales, a panel at a time. Returns how many elements are not finite.
int64_t write_codes(PackedWeight& destination, int64_t row, const RowRange& range,
                    std::span<const TensorEntry* const> entries) {
  const PackedWeightView view = destination.view();
  const int64_t panel = std::min(range.count, kPanelWidth);
  std::vector<uint8_t> codes(static_cast<size_t>(panel * view.in_features));
  std::vector<float> scales(static_cast<size_t>(panel * view.form.num_groups(view.in_features)));
  int64_t num_bad = 0;
  for (int64_t done = 0; done < range.count; done += kPanelWidth) {
    const int64_t num_rows = std::min(range.count - done, kPanelWidth);
    range.part.source->read_codes(entries, range.first + done, num_rows, codes.data(), scales.data());
    num_bad += destination.write_codes(row + done, codes.data(), scales.data(), num_rows);
  }
  return num_bad;
}

}  // namespace

// Rows first .. first + count - 1 of the part, as rows `row` .. of destination. Returns how many values are not finite.
int64_t WeightLoader::write_rows(PackedWeight& destination, int64_t row, const TensorPart& part, int64_t first,
                                 int64_t count, int64_t columns) const {
  const std::vector<const TensorEntry*> entries = entries_of(part);
  if (part.source == nullptr) {
    const TensorEntry& entry = *entries[0];
    return destination.write_rows(row, entry.data + first * columns * dtype_size(entry.dtype), entry.dtype, count);
  }
  const WeightForm form = destination.view().form;
  if (form.is_quantised()) return write_codes(destination, row, {part, first, count}, entries);
  std::vector<float> rows(static_cast<size_t>(std::min(count, kPanelWidth) * columns));
  int64_t num_bad = 0;
  for (int64_t done = 0; done < count; done += kPanelWidth) {
    const int64_t num_rows = std::min(count - done, kPanelWidth);
    part.source->read(entries, first + done, num_rows, rows.data());
    num_bad += destination.write_rows(row + done, rows.data(), DType::kFloat32, num_rows);
  }
  return num_bad;
}

void WeightLoader::finish(const TensorPart& part, int64_t num_bad, DType dtype) const {
  for (const TensorEntry* entry : entries_of(part)) {
    check_finite(num_bad, *entry, dtype, names_.checkpoint().directory());
    names_.checkpoint().release_pages(*entry);
  }
}

void WeightLoader::load_in_place(const MatrixPlan& plan) const {
  int64_t row = 0;
  for (const TensorPart& part : plan.parts) {
    finish(part, write_rows(*plan.destination, row, part, 0, part.rows, plan.columns), dtype_);
    row += part.rows;
  }
}

// Chunks are whole panels, so that a chunk of any layout is one piece of the destination.
void WeightLoader::load_staged(const MatrixPlan& plan, const std::shared_ptr<std::byte>& staging) const {
  const int64_t num_rows = total_rows(plan.parts);
  const int64_t panels = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / bytes_of(plan, kPanelWidth)));
  const int64_t chunk_rows = std::min(panels * kPanelWidth, num_rows);
  auto* destination = static_cast<std::byte*>(const_cast<void*>(plan.destination->view().data));
  size_t part = 0;
  int64_t done_of_part = 0, num_bad = 0;
  for (int64_t first = 0; first < num_rows; first += chunk_rows) {
    const int64_t end = std::min(first + chunk_rows, num_rows);
    const size_t num_bytes = bytes_of(plan, end - first);
    std::memset(staging.get(), 0, num_bytes);
    PackedWeight chunk(dtype_, end - first, plan.columns, staging, 0, layout_, plan.form);
    for (int64_t row = first; row < end;) {
      const int64_t count = std::min(end - row, plan.parts[part].rows - done_of_part);
      num_bad += write_rows(chunk, row - first, plan.parts[part], done_of_part, count, plan.columns);
      row += count;
      done_of_part += count;
      if (done_of_part < plan.parts[part].rows) continue;
      finish(plan.parts[part], num_bad, dtype_);
      ++part;
      done_of_part = num_bad = 0;
    }
    device_.copy_to_device(destination, staging.get(), num_bytes);
    device_.synchronize();  // before the buffer is filled again
    destination += num_bytes;
  }
}

void WeightLoader::load(const VectorPlan& plan) const {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(total_rows(plan.parts)));
  for (const TensorPart& part : plan.parts) {
    const std::vector<const TensorEntry*> entries = entries_of(part);
    const size_t first = values.size();
    values.resize(first + static_cast<size_t>(part.rows));
    const auto own = std::span(values).subspan(first);
    if (part.source != nullptr) {
      part.source->read(entries, 0, part.rows, own.data());
    } else {
      const std::byte* data = entries[0]->data;
      for (float& value : own) {
        value = read_float(data, entries[0]->dtype);
        data += dtype_size(entries[0]->dtype);
      }
    }
    finish(part, std::count_if(own.begin(), own.end(), [](float x) { return !std::isfinite(x); }), DType::kFloat32);
  }
  *plan.destination = Vector(device_, values);
}

size_t WeightLoader::bytes_of(const MatrixPlan& plan, int64_t num_rows) const {
  return PackedWeight::num_bytes_of(dtype_, num_rows, plan.columns, layout_, plan.form);
}

void WeightLoader::allocate_matrices() const {
  const auto size_of = [&](const MatrixPlan& plan) { return bytes_of(plan, total_rows(plan.parts)); };
  size_t num_bytes = 0;
  for (const MatrixPlan& plan : matrices_) num_bytes += size_of(plan);
  const auto buffer = std::make_shared<DeviceBuffer>(device_, num_bytes, HugePages::kYes);
  const std::shared_ptr<std::byte> memory(buffer, buffer->as<std::byte>());
  size_t offset = 0;
  for (const MatrixPlan& plan : matrices_) {
    *plan.destination = PackedWeight(dtype_, total_rows(plan.parts), plan.columns, memory, offset, layout_, plan.form);
    offset += size_of(plan);
  }
}

void WeightLoader::run() {
  check_shapes();
  check_missing();
  check_unused();
  allocate_matrices();
  if (device_.is_host()) {
    for (const MatrixPlan& plan : matrices_) load_in_place(plan);
  } else {
    size_t num_bytes = kStagingBytes;  // or one panel, if that is more
    for (const MatrixPlan& plan : matrices_) {
      num_bytes = std::max(num_bytes, bytes_of(plan, kPanelWidth));
    }
    const std::shared_ptr<std::byte> staging(
        static_cast<std::byte*>(device_.allocate_host(num_bytes)),
        [device = &device_](std::byte* memory) { device->deallocate_host(memory); });
    for (const MatrixPlan& plan : matrices_) load_staged(plan, staging);
  }
  for (const VectorPlan& plan : vectors_) load(plan);
}

void add_layer(WeightLoader& loader, LayerWeights& layer, const LayerTensors& shape, const std::string& prefix) {
  const int64_t query = shape.num_heads * shape.head_dim;
  const int64_t key = shape.num_kv_heads * shape.head_dim;
  const auto add = [&](PackedWeight& weight, Vector& bias, bool has_bias, int64_t columns,
                       const std::vector<TensorPart>& parts) {
    const auto named = [&](const char* suffix) {
      std::vector<TensorPart> result;
      for (const TensorPart& part : parts) result.push_back({prefix + part.name + suffix, part.rows});
      return result;
    };
    loader.add_matrix(weight, named(".weight"), columns);
    if (has_bias) loader.add_vector(bias, named(".bias"));
  };
  if (shape.mla) {
    add_mla(loader, layer, *shape.mla, shape, prefix);
  } else {
    add(layer.qkv, layer.qkv_bias, shape.qkv_bias, shape.attention_width,
        {{"self_attn.q_proj", query}, {"self_attn.k_proj", key}, {"self_attn.v_proj", key}});
    if (shape.sinks) loader.add_vector(layer.sinks, {{prefix + "self_attn.sinks", shape.num_heads}});
    add(layer.output, layer.output_bias, shape.output_bias, query, {{"self_attn.o_proj", shape.hidden}});
  }
  if (shape.intermediate > 0) {
    const std::string mlp = shape.mlp_prefix;
    add(layer.gate_up, layer.gate_up_bias, shape.mlp_bias, shape.hidden,
        {{mlp + "gate_proj", shape.intermediate}, {mlp + "up_proj", shape.intermediate}});
    add(layer.down, layer.down_bias, shape.mlp_bias, shape.intermediate, {{mlp + "down_proj", shape.hidden}});
  }
  const auto add_norm = [&](Vector& norm, const char* name, int64_t size) {
    loader.add_vector(norm, {norm_part(concat(prefix, name, ".weight"), size, shape.centred_norms)});
  };
  if (shape.qk_norm) {
    add_norm(layer.query_norm, "self_attn.q_norm", shape.head_dim);
    add_norm(layer.key_norm, "self_attn.k_norm", shape.head_dim);
  }
  add_norm(layer.input_norm, "input_layernorm", shape.hidden);
  if (shape.sandwich_norms) {
    add_norm(layer.attention_output_norm, "post_attention_layernorm", shape.hidden);
    add_norm(layer.post_attention_norm, "pre_feedforward_layernorm", shape.hidden);
    add_norm(layer.mlp_output_norm, "post_feedforward_layernorm", shape.hidden);
  } else {
    add_norm(layer.post_attention_norm, "post_attention_layernorm", shape.hidden);
  }
}

int64_t vector_bytes(const Vector& vector) { return static_cast<int64_t>(vector.size() * sizeof(float)); }

int64_t layer_bytes(const LayerWeights& layer) {
  int64_t bytes = 0;
  for (const PackedWeight* weight : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
    bytes += weight->num_bytes();
  for (const Vector* vector :
       {&layer.qkv_bias, &layer.output_bias, &layer.gate_up_bias, &layer.down_bias, &layer.query_norm, &layer.key_norm,
        &layer.sinks, &layer.attention_output_norm, &layer.mlp_output_norm, &layer.input_norm, &layer.hidden_norm,
        &layer.post_attention_norm}) {
    bytes += vector_bytes(*vector);
  }
  if (layer.mla) bytes += layer.mla->num_bytes();
  return bytes + (layer.moe ? layer.moe->num_bytes() : 0);
}

}  // namespace eagle31rt
