#include "generation/scheduler/sequence_pages.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>

namespace packhorse {
namespace {

// Keeps pages in which a draft model's keys and values lie, too, apart.
constexpr uint64_t kDraftedSalt = uint64_t{1} << 62;

// Keeps sources apart from what sequences hold. No model drafts for a model with an encoder.
constexpr uint64_t kSourceSalt = uint64_t{1} << 62;
constexpr int kHashBits = 39;
constexpr int64_t kMostSharedSource = (int64_t{1} << (62 - kHashBits)) - 1;

// The ids of page `number` of a source; behind its end stands what is no id.
std::array<int32_t, kPageTokens> ids_of_page(std::span<const int32_t> source, int64_t number) {
  std::array<int32_t, kPageTokens> ids;
  ids.fill(-1);
  const auto first = static_cast<size_t>(number * kPageTokens);
  std::ranges::copy(source.subspan(first, std::min(size_t(kPageTokens), source.size() - first)),
                    ids.begin());
  return ids;
}

// The ids of block `number` of a sequence, by which its page is found. Those of contents are
// numbers of these: keys and values depend on what the tokens stand for, not on their ids.
class BlockIds {
 public:
  BlockIds(const Sequence& sequence, int64_t number) {
    const int64_t first = number * kPageTokens;
    ids_ = std::span<const int32_t>(sequence.tokens)
               .subspan(static_cast<size_t>(first), size_t(kPageTokens));
    if (sequence.job->content_numbers.empty()) return;
    std::ranges::copy(ids_, own_.begin());
    put_numbers(sequence.job->content_numbers, first, own_);
    ids_ = own_;
  }
  BlockIds(const BlockIds&) = delete;
  BlockIds& operator=(const BlockIds&) = delete;

  std::span<const int32_t> ids() const { return ids_; }

 private:
  std::array<int32_t, kPageTokens> own_ = {};
  std::span<const int32_t> ids_;
};

uint64_t salt_of_adapter(const Job& job) { return job.adapter == nullptr ? 0 : job.adapter->salt; }

uint64_t random_key() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// The page that the next token goes to, or -1 where it is the first of a new one.
int32_t last_page(const Sequence& sequence) {
  const auto number = static_cast<size_t>(sequence.computed / kPageTokens);
  return number < sequence.pages.size() ? sequence.pages[number] : -1;
}

}  // namespace

SequencePages::SequencePages(int64_t num_pages, bool shares_prefixes, int64_t draft_context)
    : shares_prefixes_(shares_prefixes),
      draft_context_(draft_context),
      pool_(num_pages, shares_prefixes),
      hash_key_(random_key()) {}

void SequencePages::set_salt(Job& job) {
  // Sequences of one request alone share pages where there is no prefix cache.
  const uint64_t shared =
      static_cast<uint64_t>(job.sampling.cache_salt) << 32 | salt_of_adapter(job);
  // Keys and values of a source's sequences depend on it: their pages come behind its own.
  const bool shares = shares_prefixes_ && job.source.empty() && number_contents(job);
  job.salt = shares ? shared : next_salt_++;
  if (job.drafts_by_model) job.salt |= kDraftedSalt;
}

bool SequencePages::number_contents(Job& job) {
  job.content_numbers.clear();
  for (const PromptContent& content : job.contents) {
    const std::optional<int32_t> number = contents_.number(content.digest);
    if (!number) return false;
    job.content_numbers.push_back({content.first, content.count, *number});
  }
  return true;
}

// A page of a source depends on all its tokens, also on those behind the page. So pages are found
// after a block that stands for the length and the hash of the whole source and of its adapter, and
// all are or none: sources of one length and equal pages are equal, whatever their hashes.
uint64_t SequencePages::source_salt(const Job& job) const {
  uint64_t hash = hash_key_;
  const auto add = [&](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  };
  add(static_cast<uint64_t>(job.sampling.cache_salt));
  add(salt_of_adapter(job));
  for (const int32_t id : job.source) add(static_cast<uint32_t>(id));
  return kSourceSalt | static_cast<uint64_t>(job.source.size()) << kHashBits |
         hash >> (64 - kHashBits);
}

PagePool::Block SequencePages::root_of(const Job& job) const {
  return job.source_published ? pool_.block(job.source_pages.back()) : PagePool::root(job.salt);
}

bool SequencePages::start_source(Job& job, int64_t spare) {
  const int64_t count = pages_of(std::ssize(job.source));
  job.source_published = false;
  if (shares_prefixes_ && std::ssize(job.source) <= kMostSharedSource) {
    PagePool::Block before = PagePool::root(source_salt(job));
    for (int64_t i = 0; i < count; ++i) {
      const int32_t page = pool_.find(before, ids_of_page(job.source, i));
      if (page < 0) break;
      job.source_pages.push_back(page);
      before = pool_.block(page);
    }
    job.source_published = std::ssize(job.source_pages) == count;
    if (!job.source_published) pool_.release_all(job.source_pages);
  }
  if (pool_.available() < (job.source_published ? 0 : count) + spare) {
    release_source(job);
    return false;
  }
  while (std::ssize(job.source_pages) < count) job.source_pages.push_back(pool_.allocate());
  return true;
}

void SequencePages::publish_source(Job& job) {
  if (!shares_prefixes_ || std::ssize(job.source) > kMostSharedSource) return;
  PagePool::Block before = PagePool::root(source_salt(job));
  // Where the first page is known, the same source is, or the rest of it was evicted, or its hash
  // is that of another: this one then stays its request's own.
  if (const int32_t known = pool_.find(before, ids_of_page(job.source, 0)); known >= 0) {
    return pool_.release(known);
  }
  for (int64_t i = 0; i < std::ssize(job.source_pages); ++i) {
    const int32_t page = job.source_pages[static_cast<size_t>(i)];
    pool_.publish(page, before, ids_of_page(job.source, i));
    before = pool_.block(page);
  }
  job.source_published = true;
}

void SequencePages::release_source(Job& job) {
  pool_.release_all(job.source_pages);
  job.source_published = false;
}

bool SequencePages::start(Sequence& sequence, int64_t spare) {
  const Job& job = *sequence.job;
  // The last token is always computed: the next one comes from it. So are all whose
  // log-probabilities or weights over the source are wanted and have not come.
  int64_t most = sequence.size() - 1;
  if (sequence.index == 0 && job.must_score()) most = std::min(most, job.scored);
  if (sequence.index == 0 && job.must_align()) most = std::min(most, job.aligned);
  PagePool::Block before = root_of(job);
  int64_t found = 0;
  for (; (found + 1) * kPageTokens <= most; ++found) {
    const int32_t page = pool_.find(before, BlockIds(sequence, found).ids());
    if (page < 0) break;
    sequence.pages.push_back(page);
    before = pool_.block(page);
  }
  const int64_t missing = pages_of(sequence.size()) - found;
  if (pool_.available() < missing + spare) {
    pool_.release_all(sequence.pages);
    return false;
  }
  for (int64_t i = 0; i < missing; ++i) sequence.pages.push_back(pool_.allocate());
  sequence.published = found;
  sequence.computed = sequence.committed = found * kPageTokens;
  if (sequence.speculation != nullptr) sequence.speculation->computed = sequence.computed;
  return true;
}

int64_t SequencePages::pages_to_extend(std::span<Sequence* const> unit) const {
  int64_t count = 0;
  for (auto sequence = unit.begin(); sequence != unit.end(); ++sequence) {
    const int32_t page = last_page(**sequence);
    // All holders of a page that is not full are beams of the unit: the last of them keeps it.
    const bool keeps =
        page >= 0 && std::none_of(unit.begin(), sequence,
                                  [&](const Sequence* other) { return last_page(*other) == page; });
    count += keeps ? 0 : 1;
  }
  return count;
}

bool SequencePages::extend(std::span<Sequence* const> unit, std::vector<PageCopy>& copies) {
  if (pool_.available() < pages_to_extend(unit)) return false;
  for (Sequence* sequence : unit) {
    const int32_t page = last_page(*sequence);
    if (page < 0) {
      sequence->pages.push_back(pool_.allocate());
    } else if (pool_.holders(page) > 1) {
      sequence->pages.back() = pool_.allocate();
      copies.push_back({page, sequence->pages.back(), sequence->computed % kPageTokens});
      pool_.release(page);
    }
  }
  return true;
}

int64_t SequencePages::extend_to_drafts(Sequence& sequence, int64_t drafts) {
  while (pages_of(sequence.size() + drafts) > std::ssize(sequence.pages)) {
    if (pool_.available() == 0) return std::ssize(sequence.pages) * kPageTokens - sequence.size();
    sequence.pages.push_back(pool_.allocate());
  }
  return drafts;
}

void SequencePages::publish(Sequence& sequence) {
  // Where a model drafts, both models have computed them: as far as the draft model's context goes.
  int64_t tokens_of_all = sequence.committed;
  if (sequence.job->drafts_by_model && sequence.speculation->computed < draft_context_) {
    tokens_of_all = std::min(tokens_of_all, sequence.speculation->computed);
  }
  for (; (sequence.published + 1) * kPageTokens <= tokens_of_all; ++sequence.published) {
    const auto number = static_cast<size_t>(sequence.published);
    const PagePool::Block before =
        number == 0 ? root_of(*sequence.job) : pool_.block(sequence.pages[number - 1]);
    sequence.pages[number] =
        pool_.publish(sequence.pages[number], before, BlockIds(sequence, sequence.published).ids());
  }
}

void SequencePages::share(const Sequence& from, Sequence& to) {
  to.pages.assign(from.pages.begin(), from.pages.end());
  for (const int32_t page : to.pages) pool_.retain(page);
  to.published = from.published;
  to.computed = from.computed;
  to.committed = from.committed;
}

void SequencePages::trim(Sequence& sequence) {
  const auto pages = static_cast<size_t>(pages_of(sequence.computed));
  for (; sequence.pages.size() > pages; sequence.pages.pop_back()) {
    pool_.release(sequence.pages.back());
  }
}

void SequencePages::release(Sequence& sequence) {
  pool_.release_all(sequence.pages);
  sequence.published = 0;
  sequence.computed = sequence.committed = 0;
}

}  // namespace packhorse
