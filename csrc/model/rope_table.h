// The cosines and sines that the rows of a pass rotate by.
//
// A host that can read the positions computes them by the formula of rope_angles.h. Another device gets a table of all
// positions at load and gathers rows from it, so that both rotate by the same numbers and nothing is evaluated twice.
#pragma once

#include <cstdint>

#include "device/execution_context.h"
#include "model/device_array.h"
#include "model/rope_angles.h"
#include "model/scratch.h"

namespace eagle31rt {

struct RopeRows {
  const float* cosine;  // [num_rows, rotary_dim / 2]
  const float* sine;    // [num_rows, rotary_dim / 2]
};

class RopeTable {
 public:
  // num_positions: positions 0 .. num_positions - 1 will be asked for (unused where the device is the host).
  RopeTable(const RopeConfig& config, Device& device, int64_t num_positions);

  // positions [num_rows] in the device's memory. Valid until the next call.
  RopeRows rows(const int32_t* positions, int64_t num_rows, ExecutionContext& context);
  void reserve(int64_t num_rows);

 private:
  RopeAngles angles_;
  bool on_host_;
  DeviceArray<float> all_cosines_, all_sines_;  // [num_positions, half_dim]
  Scratch cosine_, sine_;
};

}  // namespace eagle31rt
