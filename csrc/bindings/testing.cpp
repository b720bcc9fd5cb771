#include "bindings/testing.h"

#include "bindings/error_translation.h"

PYBIND11_MODULE(_testing, module) {
  eagle31rt::register_error_translation();
  eagle31rt::bind_testing_ops(module);
  eagle31rt::bind_testing_bytes(module);
  eagle31rt::bind_testing_device(module);
  eagle31rt::bind_testing_gpu_bench(module);
  eagle31rt::bind_testing_linear(module);
  eagle31rt::bind_testing_cuda_linear(module);
  eagle31rt::bind_testing_logits(module);
  eagle31rt::bind_testing_machine(module);
  eagle31rt::bind_testing_sampling(module);
  eagle31rt::bind_testing_tree(module);
  eagle31rt::bind_testing_controller(module);
  eagle31rt::bind_testing_model(module);
  eagle31rt::bind_testing_moe(module);
  eagle31rt::bind_testing_agreement(module);
  eagle31rt::bind_testing_engine(module);
  eagle31rt::bind_testing_text(module);
  eagle31rt::bind_testing_fake_device(module);
}
