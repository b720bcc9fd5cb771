// The published formats of EAGLE-3 drafts (eagle31_spec 3): by what each is recognised and in what it differs from the
// flat form, and the spellings of tensor names. Formats that are no Hugging Face directory (GGUF, pytorch_model.bin)
// are converted to one before the core sees them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/json_reader.h"

namespace eagle31rt {

struct DraftFormat {
  const char* name;
  const char* recognised_by;  // for people
  const char* layer_ids;      // for people: where they are and what they count
  bool (*matches)(const JsonReader& top);
  bool nested_layer = false;     // sizes of the layer lie in transformer_layer_config; ids count residual states
  bool own_norm_output = false;  // its trainer gives norm_output a meaning of its own and feeds back the plain state
  std::span<const char* const> unread = {};  // keys that describe the target: the format's own reader ignores them
};

// In the order in which they are tried. The last one matches everything.
std::span<const DraftFormat> draft_formats();
const DraftFormat& recognise_draft_format(const JsonReader& top);

// Removes the keys that a draft of this format does not mean.
void drop_unread_keys(Json& config, const DraftFormat& format);

// The name in a file -> the name that the loader asks for, as CanonicalNames takes it.
std::string_view canonical_draft_name(const std::string& file_name, std::string& written);

}  // namespace eagle31rt
