// Which registers are ready: loads under way, waits, and registers never written.
//
// A load writes its registers at once, but they count as pending until an s_waitcnt covers it. ISA
// guide, chapter 4 ("data dependency resolution"): vmcnt counts loads, stores and atomics, which
// return in order; lgkmcnt counts LDS, in order among themselves, and scalar loads, in any order;
// flat instructions count in both and return in any order.
#include "wave.h"

#include <algorithm>

namespace gfx942 {
namespace {

std::string register_name(int index) {
  if (index >= kFirstAccumulator) return "a" + std::to_string(index - kFirstAccumulator);
  return "v" + std::to_string(index);
}

std::string scalar_name(int index) {
  switch (index) {
    case kVcc:
      return "vcc_lo";
    case kVcc + 1:
      return "vcc_hi";
    case kM0:
      return "m0";
    default:
      return "s" + std::to_string(index);
  }
}

bool writes(const InFlight& one, int index) {
  return one.count > 0 && one.first >= 0 && index >= one.first && index < one.first + one.count;
}

bool writes_scalar(const InFlight& one, int index) {
  return one.first_scalar >= 0 && index >= one.first_scalar && index < one.first_scalar + one.count;
}

// The pc of the youngest load under way that `is_it`.
template <class F>
s64 issued_at(const Wave& wave, F is_it) {
  for (const Queue* queue : {&wave.vector_memory, &wave.lds_and_scalar}) {
    for (auto one = queue->rbegin(); one != queue->rend(); ++one) {
      if (is_it(*one)) return static_cast<s64>(one->pc);
    }
  }
  return -1;
}

}  // namespace

void Wave::issue(Queue& queue, int first, int count, u64 lanes) {
  queue.push_back({now->pc, lanes, static_cast<s16>(first), static_cast<s16>(count), -1, true});
  for (int k = 0; k < count && first >= 0; ++k) pending[first + k] |= lanes;
}

void Wave::issue_flat(int first, int count, u64 lanes) {
  for (Queue* queue : {&vector_memory, &lds_and_scalar}) {
    queue->push_back({now->pc, lanes, static_cast<s16>(first), static_cast<s16>(count), -1, false});
  }
  for (int k = 0; k < count && first >= 0; ++k) pending[first + k] |= lanes;
}

void Wave::issue_scalar(int first_scalar, int count) {
  for (int k = 0; k < count; ++k) {
    if (pending_scalar[first_scalar + k]) refuse_scalar_write(first_scalar + k);
    unwritten_scalar[first_scalar + k] = false;
    pending_scalar[first_scalar + k] = true;
  }
  lds_and_scalar.push_back(
      {now->pc, 0, -1, static_cast<s16>(count), static_cast<s16>(first_scalar), false});
}

void Wave::wait(Queue& queue, u32 at_most) {
  if (&queue == &lds_and_scalar && at_most == 0) lds_written.clear();
  if (queue.size() <= at_most) return;
  std::vector<InFlight> landed;
  if (at_most == 0) {
    landed.assign(queue.begin(), queue.end());
    queue.clear();
  } else {
    // At worst those that may come in any order came first; what is left of the count are the
    // oldest of the ordered ones.
    const auto unordered =
        std::count_if(queue.begin(), queue.end(), [](const InFlight& one) { return !one.ordered; });
    s64 to_land = static_cast<s64>(queue.size()) - at_most - unordered;
    for (auto one = queue.begin(); one != queue.end() && to_land > 0;) {
      if (one->ordered) {
        landed.push_back(*one);
        one = queue.erase(one);
        --to_land;
      } else {
        ++one;
      }
    }
  }
  for (const InFlight& one : landed) {
    for (int k = 0; k < one.count; ++k) {
      if (one.first >= 0) pending[one.first + k] &= ~one.lanes;
      if (one.first_scalar >= 0) pending_scalar[one.first_scalar + k] = false;
    }
  }
  mark_pending();
}

void Wave::mark_pending() {
  for (const Queue* queue : {&vector_memory, &lds_and_scalar}) {
    for (const InFlight& one : *queue) {
      for (int k = 0; k < one.count; ++k) {
        if (one.first >= 0) pending[one.first + k] |= one.lanes;
        if (one.first_scalar >= 0) pending_scalar[one.first_scalar + k] = true;
      }
    }
  }
}

void Wave::check_read_slowly(int index, u64 lanes) {
  const u64 early = pending[index] & lanes;
  if (early != 0) {
    throw Fault{FaultKind::kReadBeforeWait, std::countr_zero(early), 0,
                register_name(index) + " is read before the load into it was waited for",
                issued_at(*this, [&](const InFlight& one) {
                  return writes(one, index) && (one.lanes & early);
                })};
  }
  unwritten[index] &= ~lanes;  // note each register once
  note_uninitialised(index);
}

void Wave::check_scalar_slowly(int index) {
  if (pending_scalar[index]) {
    throw Fault{FaultKind::kReadBeforeWait, -1, 0,
                scalar_name(index) + " is read before the load into it was waited for",
                issued_at(*this, [&](const InFlight& one) { return writes_scalar(one, index); })};
  }
  unwritten_scalar[index] = false;
  note_uninitialised(1000 + index);
}

void Wave::refuse_write(int index, u64 lanes) {
  const u64 early = pending[index] & lanes;
  throw Fault{FaultKind::kWrittenBeforeWait, std::countr_zero(early), 0,
              register_name(index) + " is written before the load into it was waited for",
              issued_at(*this, [&](const InFlight& one) {
                return writes(one, index) && (one.lanes & early);
              })};
}

void Wave::refuse_scalar_write(int index) {
  throw Fault{FaultKind::kWrittenBeforeWait, -1, 0,
              scalar_name(index) + " is written before the load into it was waited for",
              issued_at(*this, [&](const InFlight& one) { return writes_scalar(one, index); })};
}

void Wave::note_uninitialised(int register_index) {
  if (launch->num_uninitialised >= launch->most_uninitialised) return;
  auto* records = reinterpret_cast<UninitialisedRead*>(launch->uninitialised);
  records[launch->num_uninitialised++] = {now->pc, register_index, group->number, number};
}

}  // namespace gfx942
