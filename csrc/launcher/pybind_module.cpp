// The launcher's C interface as a Python module: the same functions, with the same meaning, as
// sglang_mi300a/launcher/ctypes_binding.py, at a lower cost per launch.
#include <pybind11/pybind11.h>

#include <string>

#include "launcher.h"

namespace py = pybind11;

namespace {

uint64_t bits(py::handle number) {
  const uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == ~uint64_t{0} && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

uint32_t word(py::handle number) {
  const uint64_t value = bits(number);
  if (value > UINT32_MAX) throw py::value_error(std::to_string(value) + " has over 32 bits");
  return static_cast<uint32_t>(value);
}

void three_words(const py::tuple& from, uint32_t (&to)[3]) {
  if (from.size() != 3) throw py::value_error("a grid and a block have three numbers");
  for (size_t axis = 0; axis < 3; ++axis) to[axis] = word(from[axis]);
}

py::tuple as_tuple(const uint32_t (&from)[3]) { return py::make_tuple(from[0], from[1], from[2]); }

void check(int32_t status, const mi300a_failure& failure) {
  if (status == MI300A_OK) return;
  const py::object raise_for =
      py::module_::import("sglang_mi300a.launcher.failure").attr("raise_for");
  raise_for(status, failure.call, failure.hip_code, failure.hip_name, failure.text, failure.kernel,
            as_tuple(failure.grid), as_tuple(failure.block));
}

py::tuple open_runtime() {
  mi300a_runtime runtime = {};
  mi300a_failure failure;
  int32_t status;
  {
    const py::gil_scoped_release others_may_run;
    status = mi300a_open(&runtime, &failure);
  }
  check(status, failure);
  return py::make_tuple(runtime.path, runtime.host_memory != 0);
}

int32_t load(int32_t device, const py::bytes& image) {
  char* data = nullptr;
  Py_ssize_t num_bytes = 0;
  if (PyBytes_AsStringAndSize(image.ptr(), &data, &num_bytes) != 0) throw py::error_already_set();
  mi300a_failure failure;
  int32_t module = -1;
  int32_t status;
  {
    const py::gil_scoped_release others_may_run;
    status = mi300a_load(device, data, static_cast<uint64_t>(num_bytes), &module, &failure);
  }
  check(status, failure);
  return module;
}

void unload(int32_t module) {
  mi300a_failure failure;
  int32_t status;
  {
    const py::gil_scoped_release others_may_run;
    status = mi300a_unload(module, &failure);
  }
  check(status, failure);
}

int32_t kernel(int32_t module, const std::string& name, const py::tuple& layout) {
  if (layout.size() > MI300A_MAX_ARGUMENTS) {
    throw py::value_error(std::to_string(layout.size()) + " arguments are too many");
  }
  mi300a_argument arguments[MI300A_MAX_ARGUMENTS];
  for (size_t i = 0; i < layout.size(); ++i) {
    const auto offset_and_size = layout[i].cast<py::tuple>();
    arguments[i] = {word(offset_and_size[0]), word(offset_and_size[1])};
  }
  mi300a_failure failure;
  int32_t number = -1;
  int32_t status;
  {
    const py::gil_scoped_release others_may_run;
    status = mi300a_kernel(module, name.c_str(), arguments, static_cast<uint32_t>(layout.size()),
                           &number, &failure);
  }
  check(status, failure);
  return number;
}

bool launch(int32_t kernel, const py::tuple& grid, const py::tuple& block,
            uint32_t dynamic_lds_bytes, uint64_t stream, const py::tuple& values) {
  uint32_t workgroups[3];
  uint32_t threads[3];
  three_words(grid, workgroups);
  three_words(block, threads);
  const size_t num_values = values.size();
  if (num_values > MI300A_MAX_ARGUMENTS) {
    throw py::value_error(std::to_string(num_values) + " arguments are too many");
  }
  uint64_t packed[MI300A_MAX_ARGUMENTS];
  for (size_t i = 0; i < num_values; ++i) packed[i] = bits(values[i]);
  mi300a_failure failure;
  int32_t captured = 0;
  int32_t status;
  {
    const py::gil_scoped_release others_may_run;
    status = mi300a_launch(kernel, workgroups, threads, dynamic_lds_bytes,
                           reinterpret_cast<void*>(stream), packed,
                           static_cast<uint32_t>(num_values), &captured, &failure);
  }
  check(status, failure);
  return captured != 0;
}

}  // namespace

PYBIND11_MODULE(pybind_module, module) {
  module.doc() = "The launcher's C interface; see csrc/launcher/launcher.h.";
  module.def("abi_version", [] { return mi300a_abi_version(); });
  module.def("open_runtime", open_runtime,
             "Return (file of the HIP runtime, is it on host memory).");
  module.def("load", load, "Load an image onto a device; return the module's number.");
  module.def("unload", unload, "Unload a module.");
  module.def("kernel", kernel, "Look a kernel up; return its number.");
  module.def("launch", launch, "Launch a kernel; return whether the stream is being captured.");
}
