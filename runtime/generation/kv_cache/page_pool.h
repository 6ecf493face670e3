// The pages of the cache: who holds them, and which hold tokens that others may share.
//
// A full page whose tokens are computed is *published*: found again by what it holds, which is a
// block of kPageTokens ids after a given block before it. A block is named by the serial number
// of its entry, and an entry says which block comes before it, so that two pages are the same only
// where all tokens from the first on are the same: hashes find candidates, ids decide.
//
// A published page that nobody holds stays until its memory is needed: the longest unused goes
// first. Holders give their pages back last block first, so that no block goes before those which
// follow it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/math.h"
#include "ops/args/kv_cache.h"

namespace packhorse {

/// Pages of so many tokens of one sequence.
constexpr int64_t pages_of(int64_t tokens) { return ceil_div(tokens, kPageTokens); }

class PagePool {
 public:
  /// Names a block: what is before the block that follows it.
  using Block = uint64_t;
  /// The block before the first of a sequence. Sequences share pages where `salt` is the same:
  /// another adapter, for one, makes other keys and values of the same tokens.
  static constexpr Block root(uint64_t salt) { return ~salt; }

  /// All memory is taken here. `keep`: published pages that nobody holds are kept.
  PagePool(int64_t num_pages, bool keep);

  /// A page held once, taken from the free ones or else from the published that nobody holds. There
  /// must be one: available() > 0.
  int32_t allocate();
  /// Another holder of a page that is held.
  void retain(int32_t page);
  void release(int32_t page);
  /// Releases the last page first, and empties the table.
  void release_all(std::vector<int32_t>& pages);
  int32_t holders(int32_t page) const { return pages_[size_t(page)].holders; }

  /// The page published with `ids` (kPageTokens of them) after `before`, held once more; -1 where
  /// there is none.
  int32_t find(Block before, std::span<const int32_t> ids);
  /// Publishes a page that the caller holds. Where these tokens have been published before, that
  /// page is held in its stead, and `page` released. Returns the page that the caller now holds.
  int32_t publish(int32_t page, Block before, std::span<const int32_t> ids);
  /// The name of a published page.
  Block block(int32_t page) const { return pages_[size_t(page)].serial; }

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  /// Published pages that nobody holds.
  int64_t num_cached() const { return num_cached_; }
  int64_t num_used() const { return size() - num_free() - num_cached(); }
  /// Pages that allocate() can give.
  int64_t available() const { return num_free() + num_cached(); }

  /// Throws RuntimeError naming the first rule that does not hold, for tests: every page is free,
  /// cached or held; `tables` are all that holds pages; each published page is found by its tokens,
  /// and the block before it is published and held as long as it is.
  void check(std::span<const std::span<const int32_t>> tables) const;

 private:
  struct Page {
    int32_t holders = 0;
    int32_t older = -1, newer = -1;  // the list of cached pages
    int32_t next_in_bucket = -1;
    Block serial = 0;  // 0: not published
    Block before = 0;
  };

  std::span<int32_t> ids_of(int32_t page);
  std::span<const int32_t> ids_of(int32_t page) const;
  size_t bucket_of(Block before, std::span<const int32_t> ids) const;
  int32_t lookup(Block before, std::span<const int32_t> ids) const;
  void unpublish(int32_t page);
  void append_cached(int32_t page);
  void remove_cached(int32_t page);

  const bool keep_;
  std::vector<Page> pages_;
  std::vector<int32_t> ids_;      // [num_pages, kPageTokens] of published pages
  std::vector<int32_t> buckets_;  // first page of each; a power of two of them
  std::vector<int32_t> free_;
  int32_t oldest_ = -1, newest_ = -1;
  int64_t num_cached_ = 0;
  Block next_serial_ = 1;
};

}  // namespace packhorse
