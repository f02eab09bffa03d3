// A stand-in accelerator for torch: memory of its own kind, streams, events, pinned memory, and counters of all that
// a real device would make expensive.  Every operator runs the CPU's kernel on the same bytes, so results are equal to
// the bit.  What a GPU refuses, it refuses: operators on tensors of two devices, among others.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>

namespace py = pybind11;
using at::Tensor;
constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
constexpr int MOST_DEVICES = 16;

// -- what is counted --------------------------------------------------------------------------------------------------
static std::atomic<int64_t> to_device{0}, to_host{0}, host_syncs{0}, operators{0}, large{0};
static std::atomic<int64_t> large_bytes{INT64_MAX};
static std::atomic<uint64_t> touched{0};  // a bit per device on which some thread has worked
static thread_local int uncounted = 0;
static thread_local c10::DeviceIndex current = 0;
static int device_count = 4;

struct Uncounted {
  Uncounted() { ++uncounted; }
  ~Uncounted() { --uncounted; }
};
static void count(std::atomic<int64_t>& what, int64_t amount = 1) {
  if (!uncounted) what += amount;
}

// -- streams: work that others have begun, such as a collective, must end before a stream goes on ------------------------
struct Fence {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  void set() {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    changed.notify_all();
  }
  bool ready() {
    std::lock_guard<std::mutex> lock(mutex);
    return done;
  }
  void wait() {
    PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return done; });
    }
    if (state) PyEval_RestoreThread(state);
  }
};
using Fences = std::vector<std::shared_ptr<Fence>>;
using StreamKey = std::pair<int, int64_t>;
static std::mutex streams_mutex;
static std::map<StreamKey, Fences> streams;
static std::atomic<int64_t> next_stream{1};
static thread_local int64_t current_streams[MOST_DEVICES] = {0};

static StreamKey here(c10::DeviceIndex device) { return {device, current_streams[device]}; }
static Fences pending(const StreamKey& key) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  auto& own = streams[key];
  own.erase(std::remove_if(own.begin(), own.end(), [](auto& fence) { return fence->ready(); }), own.end());
  return own;
}
static void add_fences(const StreamKey& key, const Fences& fences) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  auto& own = streams[key];
  own.insert(own.end(), fences.begin(), fences.end());
}
static void finish(const StreamKey& key) {
  for (auto& fence : pending(key)) fence->wait();
}
struct Event {
  Fences fences;
};

static c10::DeviceIndex sure(c10::DeviceIndex index) { return index < 0 ? current : index; }

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return DEVICE; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto old = current;
    current = sure(d.index());
    return c10::Device(DEVICE, old);
  }
  c10::Device getDevice() const override { return c10::Device(DEVICE, current); }
  void setDevice(c10::Device d) const override { current = sure(d.index()); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = sure(d.index()); }
  c10::Stream getStream(c10::Device d) const override {
    auto index = sure(d.index());
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(DEVICE, index), current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(DEVICE, sure(d.index())));
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(DEVICE, sure(d.index())), next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto old = getStream(s.device());
    current_streams[s.device_index()] = s.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event();
    static_cast<Event*>(*event)->fences = pending({s.device_index(), s.id()});
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event) add_fences({s.device_index(), s.id()}, static_cast<Event*>(event)->fences);
  }
  bool queryEvent(void* event) const override {
    if (event)
      for (auto& fence : static_cast<Event*>(event)->fences)
        if (!fence->ready()) return false;
    return true;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeEvent(void* event) const override {
    count(host_syncs);
    if (event)
      for (auto& fence : static_cast<Event*>(event)->fences) fence->wait();
  }
  bool queryStream(const c10::Stream& s) const override { return pending({s.device_index(), s.id()}).empty(); }
  void synchronizeStream(const c10::Stream& s) const override {
    count(host_syncs);
    finish({s.device_index(), s.id()});
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    count(host_syncs);
    std::vector<StreamKey> keys;
    {
      std::lock_guard<std::mutex> lock(streams_mutex);
      for (auto& [key, _] : streams)
        if (key.first == index) keys.push_back(key);
    }
    for (auto& key : keys) finish(key);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// -- memory -----------------------------------------------------------------------------------------------------------
struct DeviceMemory final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (static_cast<int64_t>(bytes) >= large_bytes) count(large);
    touched |= uint64_t(1) << current;
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    return {memory, memory, &release, c10::Device(DEVICE, current)};
  }
  static void release(void* memory) { std::free(memory); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
};
static DeviceMemory device_memory;
REGISTER_ALLOCATOR(DEVICE, &device_memory);

struct PinnedMemory final : public c10::Allocator {
  static std::mutex mutex;
  static std::map<const char*, size_t> blocks;
  c10::DataPtr allocate(size_t bytes) override {
    char* memory = static_cast<char*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
    std::lock_guard<std::mutex> lock(mutex);
    blocks[memory] = bytes;
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* memory) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      blocks.erase(static_cast<char*>(memory));
    }
    std::free(memory);
  }
  static bool has(const void* address) {
    auto place = static_cast<const char*>(address);
    std::lock_guard<std::mutex> lock(mutex);
    auto after = blocks.upper_bound(place);
    if (after == blocks.begin()) return false;
    --after;
    return place < after->first + std::max<size_t>(after->second, 1);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
};
std::mutex PinnedMemory::mutex;
std::map<const char*, size_t> PinnedMemory::blocks;
static PinnedMemory pinned_memory;

struct Hooks : public at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  void setCurrentDevice(c10::DeviceIndex d) const override { current = d; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    auto old = current;
    current = d;
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* address) const override { return PinnedMemory::has(address); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::globalContext().defaultGenerator(c10::kCPU);  // so that draws are the CPU's
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(c10::kCPU).clone();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto memory = device_memory.allocate(bytes);
    std::memcpy(memory.get(), storage.data(), std::min(bytes, storage.nbytes()));
    const_cast<c10::Storage&>(storage).set_data_ptr(std::move(memory));
    const_cast<c10::Storage&>(storage).set_nbytes(bytes);
  }
};

// -- operators --------------------------------------------------------------------------------------------------------
static bool ours(const Tensor& t) { return t.defined() && t.device().type() == DEVICE; }

static Tensor twin_of(const Tensor& t) {  // the same bytes as a CPU tensor
  if (!t.defined() || !ours(t)) return t;
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU).requires_grad(false));
}

static Tensor make(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType type, c10::DeviceIndex index) {
  auto old = current;
  current = sure(index);
  auto made = at::detail::empty_strided_generic(
      sizes, strides, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  current = old;
  return made;
}

static Tensor empty(
    c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  auto old = current;
  if (device && device->has_index()) current = device->index();
  auto made = at::detail::empty_generic(
      sizes, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type), format);
  current = old;
  return made;
}

static Tensor empty_strided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  return make(sizes, strides, c10::dtype_or_default(type), device && device->has_index() ? device->index() : -1);
}

static Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  bool up = !ours(self) && ours(target), down = ours(self) && !ours(target);
  if (up) count(to_device, self.nbytes());
  if (down) count(to_host, self.nbytes());
  const auto& host = up ? self : target;
  if ((up || down) && !(non_blocking && PinnedMemory::has(host.data_ptr()))) count(host_syncs);
  if (ours(self)) finish(here(self.device().index()));
  if (ours(target)) finish(here(target.device().index()));
  twin_of(target).copy_(twin_of(self));
  return target;
}

static Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  if (target.sizes() != self.sizes()) at::native::resize_(target, self.sizes());
  return copy_from(self, target, false);
}

static at::Scalar local_scalar(const Tensor& t) {
  count(host_syncs);
  count(to_host, t.nbytes());
  finish(here(t.device().index()));
  return twin_of(t).item();
}

static Tensor& set_source(
    Tensor& result, at::Storage source, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  result.unsafeGetTensorImpl()->set_storage_keep_dtype(source);
  result.unsafeGetTensorImpl()->set_storage_offset(offset);
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return result;
}

// These take some arguments on the host on a GPU too, or wait for the device to know a size.
static const std::unordered_set<std::string> HOST_ARGUMENTS = {
    "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_ctc_loss", "aten::_ctc_loss_backward",
    "aten::_pack_padded_sequence", "aten::_amp_foreach_non_finite_check_and_unscale_"};
static const std::unordered_set<std::string> SYNCHRONOUS = {
    "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::is_nonzero"};

static Tensor back(const Tensor& host, c10::DeviceIndex index) {
  if (!host.defined()) return host;
  auto made = make(host.sizes(), host.strides(), host.scalar_type(), index);
  twin_of(made).copy_(host);
  return made;
}

struct Call {  // of one operator: its tensors on the device, and their aliases
  std::string name;
  std::vector<std::pair<Tensor, Tensor>> pairs;
  c10::DeviceIndex index = -1;
  bool host_tensor = false;
  Tensor take(const Tensor& t) {
    if (!t.defined()) return t;
    if (!ours(t)) {
      if (t.dim() > 0) host_tensor = true;
      return t;
    }
    if (index < 0) index = t.device().index();
    TORCH_CHECK(
        index == t.device().index() || t.dim() == 0, name,
        ": Expected all tensors to be on the same device, but found at least two devices, stand_in:", int(index),
        " and stand_in:", int(t.device().index()));
    pairs.emplace_back(t, twin_of(t));
    return pairs.back().second;
  }
  Tensor original(const Tensor& host) {  // of what an operator returned: its own argument, a view of it, or a new one
    if (!host.defined()) return host;
    for (auto& [device, twin] : pairs)
      if (twin.unsafeGetTensorImpl() == host.unsafeGetTensorImpl()) return device;
    for (auto& [device, twin] : pairs)
      if (host.numel() && twin.has_storage() && host.has_storage() &&
          twin.storage().data() == host.storage().data()) {
        auto offset = device.storage_offset() + host.storage_offset() - twin.storage_offset();
        return at::cpu::as_strided(device, host.sizes(), host.strides(), offset);
      }
    return back(host, index);
  }
};

static void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& schema = op.schema();
  Call call;
  call.name = schema.name();
  count(operators);
  auto arguments = schema.arguments().size(), begin = stack->size() - arguments;
  for (size_t k = 0; k < arguments; ++k) {
    auto& value = (*stack)[begin + k];
    if (value.isTensor()) {
      value = call.take(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(call.take(t));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& t : value.toOptionalTensorVector())
        list.push_back(t.has_value() ? std::optional<Tensor>(call.take(*t)) : std::nullopt);
      value = list;
    } else if (value.isDevice() && value.toDevice().type() == DEVICE) {
      if (call.index < 0) call.index = sure(value.toDevice().index());
      value = c10::Device(c10::kCPU);
    }
  }
  if (call.index < 0) call.index = current;
  TORCH_CHECK(
      !call.host_tensor || call.pairs.empty() || HOST_ARGUMENTS.count(call.name), call.name,
      ": Expected all tensors to be on the same device, but found at least two devices, stand_in:", int(call.index),
      " and cpu");
  if (SYNCHRONOUS.count(call.name)) count(host_syncs);
  touched |= uint64_t(1) << call.index;
  finish(here(call.index));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (auto& [device, twin] : call.pairs)  // what was empty may have been resized
    if (device.numel() == 0 && twin.numel() > 0) {
      at::native::resize_(device, twin.sizes());
      twin_of(device).copy_(twin);
    }
  auto returns = schema.returns().size(), first = stack->size() - returns;
  for (size_t k = 0; k < returns; ++k) {
    auto& value = (*stack)[first + k];
    if (value.isTensor()) {
      value = call.original(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(call.original(t));
      value = list;
    }
  }
}

// Convolutions and LSTMs of a device of its own are its own affair: the CPU's here.
static Tensor convolution(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  count(operators);
  finish(here(input.device().index()));
  std::optional<Tensor> own = bias && bias->defined() ? std::optional<Tensor>(twin_of(*bias)) : std::nullopt;
  return back(
      at::convolution_symint(
          twin_of(input), twin_of(weight), own, stride, padding, dilation, transposed, output_padding, groups),
      input.device().index());
}

static std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  count(operators);
  auto index = input.device().index();
  finish(here(index));
  auto bias = c10::SymInt(transposed ? weight.size(1) * groups.guard_int(__FILE__, __LINE__) : weight.size(0));
  std::vector<c10::SymInt> sizes = {bias};
  auto [a, b, c] = at::convolution_backward_symint(
      twin_of(grad), twin_of(input), twin_of(weight), mask[2] ? at::OptionalSymIntArrayRef(sizes) : std::nullopt, stride,
      padding, dilation, transposed, output_padding, groups, mask);
  return {back(a, index), back(b, index), back(c, index)};
}

static std::vector<Tensor> on_host(at::TensorList tensors) {
  std::vector<Tensor> made;
  for (auto& t : tensors) made.push_back(t.to(at::kCPU));
  return made;
}

static std::tuple<Tensor, Tensor, Tensor> lstm(
    const Tensor& input, at::TensorList hidden, at::TensorList weights, bool biases, int64_t layers, double dropout,
    bool train, bool both, bool batch_first) {
  Uncounted guard;
  auto device = input.device();
  auto [a, b, c] = at::lstm(
      input.to(at::kCPU), on_host(hidden), on_host(weights), biases, layers, dropout, train, both, batch_first);
  return {a.to(device), b.to(device), c.to(device)};
}

static std::tuple<Tensor, Tensor, Tensor> packed_lstm(
    const Tensor& data, const Tensor& sizes, at::TensorList hidden, at::TensorList weights, bool biases,
    int64_t layers, double dropout, bool train, bool both) {
  Uncounted guard;
  auto device = data.device();
  auto [a, b, c] =
      at::lstm(data.to(at::kCPU), sizes, on_host(hidden), on_host(weights), biases, layers, dropout, train, both);
  return {a.to(device), b.to(device), c.to(device)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", [](const Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                          std::optional<c10::SymInt> offset) {
    return at::cpu::as_strided(
        self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
        offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
  });
  m.impl("view", [](const Tensor& self, c10::SymIntArrayRef sizes) { return at::cpu::view_symint(self, sizes); });
  m.impl("unfold", [](const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
    return at::cpu::unfold(self, dimension, size, step);
  });
  m.impl("_reshape_alias", [](const Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
    return at::cpu::_reshape_alias_symint(self, sizes, strides);
  });
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("resize_", [](const Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format)
                        -> const Tensor& {
    return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(sizes), format);
  });
  m.impl("set_.source_Storage_storage_offset", &set_source);
  m.impl("record_stream", [](Tensor&, at::Stream) {});
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("lstm.input", &lstm);
  m.impl("lstm.data", &packed_lstm);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm.input", &lstm);
  m.impl("lstm.data", &packed_lstm);
}

PYBIND11_MODULE(stand_in_extension, m) {
  m.def("init", [](int devices) {
    device_count = devices;
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
  });
  m.def("counts", [] {
    return std::map<std::string, int64_t>{
        {"to_device", to_device}, {"to_host", to_host}, {"host_syncs", host_syncs},
        {"operators", operators}, {"large", large},     {"touched", int64_t(touched.load())}};
  });
  m.def("count_allocations_from", [](int64_t bytes) { large_bytes = bytes; });
  m.def("device_count", [] { return device_count; });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int index) {
    TORCH_CHECK(0 <= index && index < device_count, "stand_in: invalid device ordinal");
    current = index;
  });
  m.def("synchronize", [](int index) { Guard().synchronizeDevice(index < 0 ? current : index); });
  py::class_<Fence, std::shared_ptr<Fence>>(m, "Fence")
      .def(py::init<>())
      .def("set", &Fence::set)
      .def("ready", &Fence::ready)
      .def("wait", [](Fence& fence) { fence.wait(); })
      .def("block_stream", [](std::shared_ptr<Fence> fence, int index) {
        add_fences(here(index), Fences{fence});
      });
  py::class_<Event>(m, "Marker").def("wait", [](Event& event) {
    for (auto& fence : event.fences) fence->wait();
  });
  m.def("mark_stream", [](int index) { return Event{pending(here(index))}; });
}
