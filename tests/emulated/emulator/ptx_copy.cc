// Asynchronous copies: cp.async, bulk copies, and copies of boxes of tensors.
#include <algorithm>

#include "emulator/actions.h"
#include "emulator/machine.h"
#include "emulator/tensor_copy.h"

namespace emulated {
namespace {

// Calls copy(global address, address in shared memory, elements inside) for each row of a box.
template <class F>
void for_rows(const TensorMap& map, const int32_t* at, uint32_t address, F copy) {
  const auto row_bytes = static_cast<uint64_t>(map.box[0] * map.element_bytes);
  uint64_t rows = 1;
  for (int i = 1; i < map.rank; ++i) rows *= map.box[i];
  for (uint64_t r = 0; r < rows; ++r) {
    uint64_t rest = r;
    uint64_t global = 0;  // strides may be meant to wrap
    bool inside = true;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t c = at[i] + static_cast<int64_t>(rest % map.box[i]);
      rest /= map.box[i];
      inside = inside && c >= 0 && static_cast<uint64_t>(c) < map.extents[i];
      global += static_cast<uint64_t>(c) * map.strides[i - 1];
    }
    copy(global, address + static_cast<uint32_t>(r * row_bytes), inside);
  }
}

// Copies element by element, so that what lies outside stays apart.
template <class F>
void for_elements(const TensorMap& map, const int32_t* at, uint32_t address, F copy) {
  for_rows(map, at, address, [&](uint64_t global, uint32_t row, bool row_inside) {
    for (uint32_t e = 0; e < map.box[0]; ++e) {
      const int64_t c = int64_t{at[0]} + e;
      const bool inside = row_inside && c >= 0 && static_cast<uint64_t>(c) < map.extents[0];
      copy(map.base + global + static_cast<uint64_t>(c * map.element_bytes),
           swizzled_address(row + e * map.element_bytes, map.swizzle), inside);
    }
  });
}

void load_box(const TensorMap& map, const int32_t* at, uint32_t address) {
  for_elements(map, at, address, [&](uint64_t global, uint32_t to, bool inside) {
    static constexpr char kZeros[8] = {};
    machine().write_async(to, inside ? reinterpret_cast<const void*>(global) : kZeros,
                          map.element_bytes);
  });
}

void store_box(const TensorMap& map, const int32_t* at, uint32_t address) {
  Machine& m = machine();
  for_elements(map, at, address, [&](uint64_t global, uint32_t from, bool inside) {
    if (!inside) return;
    m.check_fenced("a copy reads", from, map.element_bytes);
    std::memcpy(reinterpret_cast<void*>(global), m.shared(from, map.element_bytes, 1),
                map.element_bytes);
  });
}

// An mbarrier that a copy is to tell of its end.
uint32_t told_barrier(Run& run, const Argument& argument) {
  const auto address = static_cast<uint32_t>(run.address(argument));
  if (!machine().barrier(address).fenced) {
    run.fail("a copy with an mbarrier that was initialised with no fence since");
  }
  return address;
}

void copy_async(Run& run, const Instruction& i) {
  Machine& m = machine();
  const uint32_t to = static_cast<uint32_t>(run.address(i.arguments[0]));
  const uint64_t from = run.address(i.arguments[1]);
  const auto bytes = static_cast<size_t>(run.get(i.arguments[2]));
  size_t read = bytes;
  if (i.arguments.size() > 3) {
    const Argument& more = i.arguments[3];
    read = run.get32(more);
  }
  if (bytes != 4 && bytes != 8 && bytes != 16)
    run.fail("cp.async of " + std::to_string(bytes) + " bytes");
  if (i.has("cg") && bytes != 16) run.fail("cp.async.cg of other than 16 bytes");
  if (read > bytes) run.fail("cp.async reads more than it writes");
  if (read > 0 && from % bytes != 0) run.fail("cp.async from an address that is not aligned");
  m.shared(to, bytes, bytes);
  auto operation = [to, from, bytes, read] {
    char* const at = machine().shared(to, bytes, bytes);
    if (read > 0) std::memcpy(at, reinterpret_cast<const void*>(from), read);
    std::memset(at + read, 0, bytes - read);
  };
  if (m.at_once()) return operation();
  m.self().copies.open.push_back(std::move(operation));
}

void copy_async_barrier(Run& run, const Instruction& i) {
  Machine& m = machine();
  const uint32_t address = static_cast<uint32_t>(run.address(i.arguments[0]));
  if (!i.has("noinc")) m.barrier(address).pending += 1;
  // Arrives after all copies of this thread so far, which it must therefore do.
  auto copies = std::make_shared<Groups>(std::move(m.self().copies));
  m.self().copies = {};
  m.later([address, copies] {
    copies->commit();
    copies->complete(0);
    machine().arrive_barrier(address, 1, 0);
  });
}

void commit(Run&, const Instruction& i) {
  (i.has("bulk") ? machine().self().stores : machine().self().copies).commit();
}

void wait_group(Run& run, const Instruction& i) {
  Machine& m = machine();
  Groups& groups = i.has("bulk") ? m.self().stores : m.self().copies;
  if (i.has("wait_all")) groups.commit();
  groups.complete(i.has("wait_all") ? 0 : static_cast<size_t>(run.get(i.arguments[0])));
  if (!i.has("bulk") && groups.committed.empty() && groups.open.empty()) groups = {};
  m.maybe_pause(4);
}

const TensorMap& tensor_map(Run& run, const Argument& argument) {
  const uint64_t address = run.address(argument);
  if (address % 64 != 0) run.fail("a tensor map that is not aligned to 64 bytes");
  const auto& map = *reinterpret_cast<const TensorMap*>(address);
  if (map.magic != TensorMap::kMagic) run.fail("a tensor map that was not encoded");
  return map;
}

std::array<int32_t, 5> coordinates(Run& run, const Instruction& i, const TensorMap& map,
                                   const Argument& argument) {
  const int rank = i.has("1d") ? 1 : i.has("2d") ? 2 : i.has("3d") ? 3 : i.has("4d") ? 4 : 5;
  if (rank != map.rank)
    run.fail("a copy of " + std::to_string(rank) + " dimensions with a map of " +
             std::to_string(map.rank));
  std::array<int32_t, 5> at{};
  for (int k = 0; k < rank; ++k)
    at[static_cast<size_t>(k)] =
        static_cast<int32_t>(run.get32(argument.parts[1].parts[static_cast<size_t>(k)]));
  return at;
}

void tensor_copy(Run& run, const Instruction& i) {
  Machine& m = machine();
  if (i.has("im2col") || i.has("tile::gather4")) run.fail("copies of type im2col are not emulated");
  const bool load = i.parts[5].starts_with("shared");
  const Argument& shared_argument = i.arguments[load ? 0 : 1];
  const Argument& tensor = i.arguments[load ? 1 : 0];
  const TensorMap map = tensor_map(run, tensor);
  const auto at = coordinates(run, i, map, tensor);
  const uint32_t address = static_cast<uint32_t>(run.address(shared_argument));
  const size_t bytes = map.box_bytes();
  m.shared(address, bytes, 128);
  if (!load) {
    auto operation = [=] { store_box(map, at.data(), address); };
    if (m.at_once()) return operation();
    return m.self().stores.open.push_back(std::move(operation));
  }
  const uint32_t barrier = told_barrier(run, i.arguments[2]);
  m.later([=] {
    load_box(map, at.data(), address);
    machine().complete_bytes(barrier, static_cast<int64_t>(bytes));
  });
  m.maybe_pause(2);
}

void bulk_copy(Run& run, const Instruction& i) {
  Machine& m = machine();
  const bool load = i.parts[3].starts_with("shared");
  const size_t bytes = run.get32(i.arguments[2]);
  const uint32_t address = static_cast<uint32_t>(run.address(i.arguments[load ? 0 : 1]));
  const uint64_t global = run.address(i.arguments[load ? 1 : 0]);
  if (bytes % 16 != 0 || global % 16 != 0)
    run.fail("a bulk copy of other than whole, aligned vectors of 16 bytes");
  char* const shared = m.shared(address, bytes, 16);
  if (!load) {
    auto operation = [=] {
      machine().check_fenced("a copy reads", address, bytes);
      std::memcpy(reinterpret_cast<void*>(global), shared, bytes);
    };
    if (m.at_once()) return operation();
    return m.self().stores.open.push_back(std::move(operation));
  }
  const uint32_t barrier = told_barrier(run, i.arguments[3]);
  m.later([=] {
    machine().write_async(address, reinterpret_cast<const void*>(global), bytes);
    machine().complete_bytes(barrier, static_cast<int64_t>(bytes));
  });
  m.maybe_pause(2);
}

}  // namespace

Action copy_action(const Instruction& i) {
  if (i.parts[0] != "cp" || i.parts.size() < 3 || i.parts[1] != "async") return nullptr;
  if (i.has("mbarrier") && i.has("arrive")) return copy_async_barrier;
  if (i.has("commit_group")) return commit;
  if (i.has("wait_group") || i.has("wait_all")) return wait_group;
  if (i.has("prefetch")) return [](Run&, const Instruction&) {};
  if (i.has("tensor")) return tensor_copy;
  if (i.has("bulk")) return bulk_copy;
  return copy_async;
}

}  // namespace emulated
