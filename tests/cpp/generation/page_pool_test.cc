#include "generation/kv_cache/page_pool.h"

#include <array>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "ops/args/kv_cache.h"
#include "packhorse/error.h"
#include "test.h"

using packhorse::kPageTokens;
using packhorse::PagePool;

namespace {

using Ids = std::vector<int32_t>;
using Table = std::vector<int32_t>;

Ids block(int32_t token) { return Ids(size_t(kPageTokens), token); }

void check(const PagePool& pool, const std::vector<Table>& tables) {
  pool.check(std::vector<std::span<const int32_t>>(tables.begin(), tables.end()));
}

// A page of each token of `tokens`, one after the other, published.
Table publish_chain(PagePool& pool, const Ids& tokens, uint64_t salt = 0) {
  Table pages;
  PagePool::Block before = PagePool::root(salt);
  for (const int32_t token : tokens) {
    pages.push_back(pool.publish(pool.allocate(), before, block(token)));
    before = pool.block(pages.back());
  }
  return pages;
}

Table find_chain(PagePool& pool, const Ids& tokens, uint64_t salt = 0) {
  Table pages;
  PagePool::Block before = PagePool::root(salt);
  for (const int32_t token : tokens) {
    const int32_t page = pool.find(before, block(token));
    if (page < 0) break;
    pages.push_back(page);
    before = pool.block(page);
  }
  return pages;
}

}  // namespace

TEST(page_pool_counts_holders) {
  PagePool pool(3, true);
  CHECK(pool.size() == 3 && pool.available() == 3);
  Table pages = {pool.allocate(), pool.allocate(), pool.allocate()};
  CHECK(std::set(pages.begin(), pages.end()).size() == 3 && pool.available() == 0);
  check(pool, {pages});
  pool.retain(pages[1]);
  CHECK(pool.holders(pages[1]) == 2);
  pool.release(pages[1]);
  check(pool, {pages});
  CHECK_THROWS_AS(packhorse::RuntimeError, check(pool, {}), "holders, found 0");
  pool.release_all(pages);
  CHECK(pages.empty() && pool.num_free() == 3);
  check(pool, {});
}

TEST(page_pool_finds_what_was_published) {
  PagePool pool(8, true);
  Table first = publish_chain(pool, {5, 6, 7});
  Table second = find_chain(pool, {5, 6, 8});
  CHECK(second == Table(first.begin(), first.begin() + 2));
  CHECK(pool.holders(first[0]) == 2 && pool.holders(first[2]) == 1);
  // Equal tokens after others, or of another adapter, are not the same.
  CHECK(find_chain(pool, {6}).empty() && find_chain(pool, {5}, 1).empty());
  Table other = publish_chain(pool, {5}, 1);
  CHECK(other[0] != first[0]);
  check(pool, {first, second, other});
  // Blocks that are computed twice are kept once.
  Table again = publish_chain(pool, {5, 6, 9});
  CHECK(again[0] == first[0] && again[1] == first[1] && again[2] != first[2]);
  CHECK(pool.num_used() == 5);
  check(pool, {first, second, other, again});
  for (Table* table : {&first, &second, &other, &again}) pool.release_all(*table);
  CHECK(pool.num_cached() == 5 && pool.num_used() == 0);
  Table found = find_chain(pool, {5, 6, 7});
  CHECK(found.size() == 3 && pool.num_cached() == 2);
  check(pool, {found});
}

TEST(page_pool_evicts_the_longest_unused_from_the_end) {
  PagePool pool(6, true);
  Table old = publish_chain(pool, {1, 2, 3});
  Table young = publish_chain(pool, {1, 4, 5});
  pool.release_all(old);
  pool.release_all(young);
  CHECK(pool.num_cached() == 5);
  Table taken = {pool.allocate(), pool.allocate()};  // the free page, then that of 3
  Table found = find_chain(pool, {1, 2, 3});
  CHECK(found.size() == 2);
  pool.release_all(found);
  taken.push_back(pool.allocate());  // 5: its chain was used before the other
  found = find_chain(pool, {1, 4, 5});
  CHECK(found.size() == 2);
  check(pool, {taken, found});
  taken.push_back(pool.allocate());  // 2
  CHECK(pool.available() == 0);
  check(pool, {taken, found});
}

TEST(page_pool_keeps_nothing_where_asked) {
  PagePool pool(4, false);
  Table first = publish_chain(pool, {1, 2});
  Table second = find_chain(pool, {1, 2});
  CHECK(second == first);
  pool.release_all(first);
  pool.release_all(second);
  CHECK(pool.num_free() == 4 && find_chain(pool, {1}).empty());
  check(pool, {});
}

TEST(page_pool_equals_a_map) {
  // Chains of few tokens, so that many begin alike, in few pages, so that many are evicted.
  PagePool pool(12, true);
  std::vector<Table> tables;
  std::vector<Ids> chains;
  uint64_t state = 7;
  const auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int round = 0; round < 3000; ++round) {
    if (!tables.empty() && (draw(2) == 0 || pool.available() < 4)) {
      const size_t gone = draw(tables.size());
      pool.release_all(tables[gone]);
      tables.erase(tables.begin() + ptrdiff_t(gone));
      chains.erase(chains.begin() + ptrdiff_t(gone));
      continue;
    }
    Ids tokens(1 + draw(4));
    for (int32_t& token : tokens) token = int32_t(draw(2));
    Table table = find_chain(pool, tokens);
    // Pages that a table holds are always found, and are the same pages.
    for (size_t i = 0; i < tables.size(); ++i) {
      for (size_t b = 0; b < tokens.size() && b < chains[i].size(); ++b) {
        if (chains[i][b] != tokens[b]) break;
        CHECK(b < table.size() && table[b] == tables[i][b]);
      }
    }
    PagePool::Block before = table.empty() ? PagePool::root(0) : pool.block(table.back());
    for (size_t b = table.size(); b < tokens.size(); ++b) {
      table.push_back(pool.publish(pool.allocate(), before, block(tokens[b])));
      before = pool.block(table.back());
    }
    tables.push_back(std::move(table));
    chains.push_back(std::move(tokens));
    check(pool, tables);
  }
}
