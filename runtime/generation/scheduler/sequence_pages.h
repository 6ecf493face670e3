// Pages of the cache that sequences hold: found, taken, shared, published, given back.
//
// It knows neither steps nor requests that wait: who gives way where pages are missing, the
// scheduler decides.
//
// Pages may change hands while steps are in flight, because these run in the order of their
// launches. A step in flight writes no pages but those that its sequences held alone when it was
// planned (Step says so).
//   - Given back and taken by another sequence: that sequence's step runs later, and writes each
//     token of the page before it reads it.
//   - Published: only what collected steps have written, so that nobody finds a page of a step that
//     may still fail or whose result may be thrown away. Where the page of another sequence is
//     taken in place of an own one, a step in flight still reads the own one, which a later step
//     may only then overwrite. A page that is full is written by no step again.
//   - Evicted: a page that nobody holds is read by steps that were planned before, at most.
//   - Copied: a copy is part of the step that needs it, and runs between the steps before and
//     after.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generation/engine/job.h"
#include "generation/kv_cache/page_pool.h"
#include "generation/runner/step_runner.h"

namespace packhorse {

class SequencePages {
 public:
  /// `shares_prefixes`: requests find published pages of others. `draft_context`: positions of the
  /// draft model, if there is one.
  SequencePages(int64_t num_pages, bool shares_prefixes, int64_t draft_context);

  /// Sets Job::salt and Job::content_numbers.
  void set_salt(Job& job);
  /// Gives a request the pages of its source, published ones if they are there: what they hold is
  /// then computed (Job::source_published). False, and it has none: fewer than `spare` pages would
  /// be left.
  bool start_source(Job& job, int64_t spare);
  /// The source is computed: its pages can be found.
  void publish_source(Job& job);
  void release_source(Job& job);
  bool shares_prefixes() const { return shares_prefixes_; }
  /// Gives a sequence without pages those of all its tokens, published ones first; what these hold
  /// is computed. False, and it has none: fewer than `spare` pages would be left.
  bool start(Sequence& sequence, int64_t spare);
  /// Gives each of `unit`, which is one sequence or all beams of a request, a page of its own for
  /// its next token. Beams leave pages that they share by copies. False: too few pages are left.
  bool extend(std::span<Sequence* const> unit, std::vector<PageCopy>& copies);
  /// Gives a sequence pages for up to `drafts` tokens behind its text; returns for how many.
  int64_t extend_to_drafts(Sequence& sequence, int64_t drafts);
  /// Publishes full pages whose tokens are committed, where they are not yet.
  void publish(Sequence& sequence);
  /// Has `to`, which holds none, hold the pages of `from`.
  void share(const Sequence& from, Sequence& to);
  /// Takes pages behind the computed tokens: what only rejected drafts lie in may be what another
  /// sequence lacks.
  void trim(Sequence& sequence);
  /// Takes all pages of a sequence, which has computed nothing then.
  void release(Sequence& sequence);

  const PagePool& pool() const { return pool_; }

 private:
  uint64_t source_salt(const Job& job) const;
  /// Block before the first page of the request's sequences.
  PagePool::Block root_of(const Job& job) const;
  /// Sets Job::content_numbers. False: there are no numbers left.
  bool number_contents(Job& job);
  int64_t pages_to_extend(std::span<Sequence* const> unit) const;

  const bool shares_prefixes_;
  const int64_t draft_context_;
  PagePool pool_;
  const uint64_t hash_key_;  // nobody outside can make sources of equal hashes
  uint64_t next_salt_ = 1;
  ContentNumbers contents_;
};

}  // namespace packhorse
