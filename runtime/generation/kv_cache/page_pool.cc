#include "generation/kv_cache/page_pool.h"

#include <algorithm>
#include <bit>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

PagePool::PagePool(int64_t num_pages, bool keep)
    : keep_(keep),
      pages_(size_t(num_pages)),
      ids_(size_t(num_pages * kPageTokens)),
      buckets_(std::bit_ceil(size_t(2 * num_pages + 1)), -1) {
  free_.reserve(size_t(num_pages));
  for (auto page = static_cast<int32_t>(num_pages); page > 0;) free_.push_back(--page);
}

int32_t PagePool::allocate() {
  if (free_.empty()) {
    const int32_t page = oldest_;
    remove_cached(page);
    unpublish(page);
    free_.push_back(page);
  }
  const int32_t page = free_.back();
  free_.pop_back();
  pages_[size_t(page)].holders = 1;
  return page;
}

void PagePool::retain(int32_t page) { ++pages_[size_t(page)].holders; }

void PagePool::release(int32_t page) {
  Page& released = pages_[size_t(page)];
  if (--released.holders > 0) return;
  if (released.serial != 0 && keep_) return append_cached(page);
  if (released.serial != 0) unpublish(page);
  free_.push_back(page);
}

void PagePool::release_all(std::vector<int32_t>& pages) {
  for (; !pages.empty(); pages.pop_back()) release(pages.back());
}

int32_t PagePool::find(Block before, std::span<const int32_t> ids) {
  const int32_t page = lookup(before, ids);
  if (page < 0) return -1;
  if (pages_[size_t(page)].holders++ == 0) remove_cached(page);
  return page;
}

int32_t PagePool::publish(int32_t page, Block before, std::span<const int32_t> ids) {
  if (const int32_t known = find(before, ids); known >= 0) {
    release(page);
    return known;
  }
  Page& published = pages_[size_t(page)];
  published.serial = next_serial_++;
  published.before = before;
  std::copy(ids.begin(), ids.end(), ids_of(page).begin());
  int32_t& bucket = buckets_[bucket_of(before, ids)];
  published.next_in_bucket = bucket;
  bucket = page;
  return page;
}

std::span<int32_t> PagePool::ids_of(int32_t page) {
  return {ids_.data() + page * kPageTokens, size_t(kPageTokens)};
}

std::span<const int32_t> PagePool::ids_of(int32_t page) const {
  return {ids_.data() + page * kPageTokens, size_t(kPageTokens)};
}

// FNV-1a, word by word, and a last mix because buckets take the low bits.
size_t PagePool::bucket_of(Block before, std::span<const int32_t> ids) const {
  uint64_t hash = 0xcbf29ce484222325u ^ before;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3u;
  hash ^= hash >> 32;
  return size_t(hash) & (buckets_.size() - 1);
}

int32_t PagePool::lookup(Block before, std::span<const int32_t> ids) const {
  int32_t page = buckets_[bucket_of(before, ids)];
  while (page >= 0) {
    const Page& candidate = pages_[size_t(page)];
    if (candidate.before == before && std::ranges::equal(ids_of(page), ids)) break;
    page = candidate.next_in_bucket;
  }
  return page;
}

void PagePool::unpublish(int32_t page) {
  Page& gone = pages_[size_t(page)];
  int32_t* link = &buckets_[bucket_of(gone.before, ids_of(page))];
  while (*link != page) link = &pages_[size_t(*link)].next_in_bucket;
  *link = gone.next_in_bucket;
  gone.next_in_bucket = -1;
  gone.serial = 0;
}

void PagePool::append_cached(int32_t page) {
  Page& appended = pages_[size_t(page)];
  appended.older = newest_;
  appended.newer = -1;
  (newest_ < 0 ? oldest_ : pages_[size_t(newest_)].newer) = page;
  newest_ = page;
  ++num_cached_;
}

void PagePool::remove_cached(int32_t page) {
  const Page& removed = pages_[size_t(page)];
  (removed.older < 0 ? oldest_ : pages_[size_t(removed.older)].newer) = removed.newer;
  (removed.newer < 0 ? newest_ : pages_[size_t(removed.newer)].older) = removed.older;
  --num_cached_;
}

void PagePool::check(std::span<const std::span<const int32_t>> tables) const {
  const auto expect = [](bool holds, auto&&... what) {
    if (!holds) throw RuntimeError(concat("page pool: ", what...));
  };
  std::vector<int32_t> holders(pages_.size());
  for (const auto table : tables) {
    for (const int32_t page : table) ++holders[size_t(page)];
  }
  std::vector<int> lists(pages_.size());
  for (const int32_t page : free_) ++lists[size_t(page)];
  int64_t cached = 0;
  for (int32_t page = oldest_; page >= 0; page = pages_[size_t(page)].newer, ++cached) {
    expect(pages_[size_t(page)].serial != 0, "page ", page, " is cached and not published");
    ++lists[size_t(page)];
  }
  expect(cached == num_cached_, cached, " pages are cached, counted are ", num_cached_);
  for (int32_t page = 0; page < size(); ++page) {
    const Page& seen = pages_[size_t(page)];
    expect(seen.holders == holders[size_t(page)], "page ", page, " counts ", seen.holders,
           " holders, found ", holders[size_t(page)]);
    expect(lists[size_t(page)] == (seen.holders == 0 ? 1 : 0), "page ", page, " with ",
           seen.holders, " holders is in ", lists[size_t(page)], " lists of unused pages");
    if (seen.serial == 0) continue;
    expect(lookup(seen.before, ids_of(page)) == page, "page ", page, " is not found by its tokens");
    const auto parent = std::ranges::find(pages_, seen.before, &Page::serial);
    if (parent == pages_.end()) {
      expect(seen.before >= next_serial_, "the block before page ", page, " is gone");
    } else {
      expect(parent->holders >= (seen.holders > 0 ? 1 : 0), "page ", page,
             " is held, the block before it is not");
    }
  }
}

}  // namespace packhorse
