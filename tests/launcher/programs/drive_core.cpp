// Drive the launcher's core through its C interface, for the sanitizers: every function, good calls
// and bad ones, several threads at once, captures and replays. Prints what it did; exit 1 on a
// surprise. Argument: a file with the sample kernels.
#include <stdio.h>
#include <string.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "../../../csrc/launcher/launcher.h"
#include "../standin_hip/standin.h"

extern "C" {
HipCode hipStreamCreate(void** stream);
HipCode hipStreamBeginCapture(void* stream, int mode);
HipCode hipStreamEndCapture(void* stream, void** graph);
HipCode hipGraphInstantiate(void** executable, void* graph, void** node, char* log, size_t size);
HipCode hipGraphLaunch(void* executable, void* stream);
}

namespace {

int num_surprises = 0;
std::string last_text;

void expect(const char* what, int32_t found, int32_t wanted, const mi300a_failure& failure) {
  last_text = failure.text;
  if (found == wanted) return;
  printf("%s: status %d, not %d: %s %s\n", what, found, wanted, failure.call, failure.text);
  ++num_surprises;
}

// Leave other bytes than zero where the next call has its locals.
__attribute__((noinline)) void litter_the_stack() {
  volatile char litter[16384];
  for (volatile char& each : litter) each = 0x5a;
}

// The arguments of `mixed_widths` leave a gap at 12.
constexpr mi300a_argument kGapLayout[] = {{0, 8}, {8, 4}, {16, 8}, {24, 8}, {32, 8}};

int gap_of(const StandinLaunch* launch) {
  int gap = -1;
  memcpy(&gap, static_cast<const char*>(launch->arguments) + 12, sizeof gap);
  return gap;
}

// What `add_table` computes, with the arguments where its metadata says they are.
int execute(const StandinLaunch* launch) {
  if (strcmp(launch->kernel, "mixed_widths") == 0) {
    return gap_of(launch) == 0 ? hipSuccess : hipErrorInvalidValue;
  }
  struct Arguments {
    const float* x;
    const float* table;
    float* out;
    uint32_t count;
    uint32_t table_size;
  } arguments;
  if (launch->num_argument_bytes != sizeof arguments) return hipErrorInvalidValue;
  memcpy(&arguments, launch->arguments, sizeof arguments);
  for (uint32_t i = 0; i < arguments.count; ++i) {
    arguments.out[i] = arguments.x[i] + arguments.table[i % arguments.table_size];
  }
  return hipSuccess;
}

struct Data {
  std::vector<float> x = std::vector<float>(300, 1.0f);
  std::vector<float> table = {1.0f, 2.0f, 3.0f};
  std::vector<float> out = std::vector<float>(300, 0.0f);

  std::vector<uint64_t> values() {
    return {reinterpret_cast<uint64_t>(x.data()), reinterpret_cast<uint64_t>(table.data()),
            reinterpret_cast<uint64_t>(out.data()), x.size(), table.size()};
  }
};

constexpr uint32_t kGrid[3] = {2, 1, 1};
constexpr uint32_t kBlock[3] = {256, 1, 1};
constexpr mi300a_argument kLayout[] = {{0, 8}, {8, 8}, {16, 8}, {24, 4}, {28, 4}};

int32_t launch(int32_t kernel, Data* data, void* stream, mi300a_failure* failure) {
  const std::vector<uint64_t> values = data->values();
  int32_t captured = 0;
  return mi300a_launch(kernel, kGrid, kBlock, 0, stream, values.data(),
                       static_cast<uint32_t>(values.size()), &captured, failure);
}

void check_result(const Data& data) {
  for (size_t i = 0; i < data.out.size(); ++i) {
    if (data.out[i] != data.x[i] + data.table[i % 3]) {
      printf("element %zu is %g\n", i, static_cast<double>(data.out[i]));
      ++num_surprises;
      return;
    }
  }
}

void good_calls(const std::string& image) {
  mi300a_failure failure;
  mi300a_runtime runtime;
  expect("open", mi300a_open(&runtime, &failure), MI300A_OK, failure);
  int32_t module = -1;
  int32_t kernel = -1;
  {
    std::string copy = image;  // gone before the launch: the core has its own
    expect("load", mi300a_load(0, copy.data(), copy.size(), &module, &failure), MI300A_OK, failure);
    copy.assign(copy.size(), '\0');
  }
  expect("kernel", mi300a_kernel(module, "add_table", kLayout, 5, &kernel, &failure), MI300A_OK,
         failure);
  Data data;
  expect("launch", launch(kernel, &data, nullptr, &failure), MI300A_OK, failure);
  check_result(data);

  int32_t with_gap = -1;
  mi300a_kernel(module, "mixed_widths", kGapLayout, 5, &with_gap, &failure);
  const uint64_t numbers[] = {0, 1, 2, 3, 4};
  int32_t captured_gap = 0;
  litter_the_stack();
  expect("gap",
         mi300a_launch(with_gap, kGrid, kBlock, 0, nullptr, numbers, 5, &captured_gap, &failure),
         MI300A_OK, failure);

  std::vector<std::thread> threads;
  std::vector<Data> own(4);
  for (Data& each : own) {
    threads.emplace_back([&each, &image] {
      mi300a_failure mine;
      int32_t my_module = -1;
      int32_t my_kernel = -1;
      for (int i = 0; i < 50; ++i) {
        mi300a_load(0, image.data(), image.size(), &my_module, &mine);
        mi300a_kernel(my_module, "add_table", kLayout, 5, &my_kernel, &mine);
        launch(my_kernel, &each, nullptr, &mine);
        mi300a_unload(my_module, &mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Data& each : own) check_result(each);

  void* stream = nullptr;
  void* graph = nullptr;
  void* executable = nullptr;
  hipStreamCreate(&stream);
  hipStreamBeginCapture(stream, 0);
  Data captured;
  expect("captured", launch(kernel, &captured, stream, &failure), MI300A_OK, failure);
  hipStreamEndCapture(stream, &graph);
  hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0);
  hipGraphLaunch(executable, nullptr);
  check_result(captured);
  expect("unload captured", mi300a_unload(module, &failure), MI300A_BAD_CALL, failure);
}

void bad_calls(const std::string& image) {
  mi300a_failure failure;
  int32_t module = -1;
  int32_t kernel = -1;
  std::string broken = image;
  broken[0] = 'x';
  expect("no ELF", mi300a_load(0, broken.data(), broken.size(), &module, &failure),
         MI300A_HIP_ERROR, failure);
  expect("empty", mi300a_load(0, nullptr, 0, &module, &failure), MI300A_BAD_CALL, failure);
  expect("device 9", mi300a_load(9, image.data(), image.size(), &module, &failure),
         MI300A_HIP_ERROR, failure);
  mi300a_load(0, image.data(), image.size(), &module, &failure);
  const std::string long_name(5000, 'n');
  expect("long name", mi300a_kernel(module, long_name.c_str(), kLayout, 5, &kernel, &failure),
         MI300A_BAD_CALL, failure);
  expect("no name", mi300a_kernel(module, "nothing", kLayout, 5, &kernel, &failure),
         MI300A_HIP_ERROR, failure);
  std::vector<mi300a_argument> many(100, mi300a_argument{0, 8});
  expect("many", mi300a_kernel(module, "add_table", many.data(), 100, &kernel, &failure),
         MI300A_BAD_CALL, failure);
  const mi300a_argument far[] = {{4294967292u, 8}};
  expect("far", mi300a_kernel(module, "add_table", far, 1, &kernel, &failure), MI300A_BAD_CALL,
         failure);
  mi300a_kernel(module, "add_table", kLayout, 5, &kernel, &failure);
  Data data;
  mi300aStandinFailNext("hipModuleLaunchKernel", 12345);
  expect("injected", launch(kernel, &data, nullptr, &failure), MI300A_HIP_ERROR, failure);
  expect("no stream", launch(kernel, &data, &data, &failure), MI300A_HIP_ERROR, failure);
  expect("unload", mi300a_unload(module, &failure), MI300A_OK, failure);
  expect("unload twice", mi300a_unload(module, &failure), MI300A_BAD_CALL, failure);
  expect("stale", launch(kernel, &data, nullptr, &failure), MI300A_BAD_CALL, failure);
  for (const int32_t number : {-1, 1 << 30}) {
    expect("module", mi300a_unload(number, &failure), MI300A_BAD_CALL, failure);
    expect("kernel", launch(number, &data, nullptr, &failure), MI300A_BAD_CALL, failure);
  }
}

}  // namespace

int main(int, char** arguments) {
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  mi300aStandinSetExecute(execute);
  good_calls(image);
  bad_calls(image);
  printf("%d surprises\n", num_surprises);
  return num_surprises != 0;
}
