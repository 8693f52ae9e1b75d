/* The weight rows of a task, which need not be of the activations' type. */
#ifndef VLLM_KERNELS_TASK_ROWS_H
#define VLLM_KERNELS_TASK_ROWS_H
#include "dequantise.h"
#include "pool.h"
#include "rows.h"

namespace {

/* Whether a weight's rows are of type T, all in one part. */
template <class T>
inline bool is_in_place(const vk_linear *linear) {
  return linear->num_parts == 1 && linear->parts[0].type == T::kType;
}

/* Panels that are expanded at a time: a task's, and the first of the next. */
constexpr int64_t kExpandedPanels = kTaskRows / kPanel + 1;

/* Has memory for the rows of a task, where they must be expanded; false when the system has none. */
template <class T>
inline bool reserve_rows(vk_pool *pool, const vk_linear *linear) {
  size_t nbytes = size_t(kExpandedPanels * kPanel * linear->k) * sizeof(typename T::Element);
  return is_in_place<T>(linear) || pool_reserve(pool, nbytes);
}

inline int64_t tasks_of(int64_t n) { return (n + kTaskRows - 1) / kTaskRows; }

/* Rows of one part. */
template <class T>
struct Piece {
  int64_t type;
  const char *from;         /* NULL: there is none */
  typename T::Element *to;  /* of what is not of type T */
  int64_t rows;
};

/* The rows of a task as T: where they are, or, from the first to the last, expanded into the worker's memory. */
template <class T>
class TaskRows {
 public:
  using Element = typename T::Element;

  /* Those of task number `task` of a weight, which is the job's task number `of_job`. */
  TaskRows(const vk_linear *linear, vk_pool *pool, int worker, int64_t task, int64_t of_job)
      : linear_(linear), pool_(pool), worker_(worker), of_job_(of_job), first_(task * kTaskRows), part_(linear->parts),
        row_(first_) {
    num_rows_ = linear->n - first_ < kTaskRows ? linear->n - first_ : kTaskRows;
    while (row_ >= part_->num_rows) row_ -= part_++->num_rows;
    if (is_in_place<T>(linear)) return;
    memory_ = static_cast<Element *>(pool_scratch(pool, worker));
    has_next_ = first_ + kTaskRows < linear->n && pool_is_next(pool, worker, of_job + 1);
    pass(pool_note(pool, worker, of_job));
  }

  int64_t first() const { return first_; }
  int64_t size() const { return num_rows_; }

  /* The panel that begins with row `at` of the task. Rows that are not there stand for the last one, and nobody reads
   * their products. */
  void find(int64_t at, const Element *panel[kPanel]) const {
    const vk_part *part = linear_->parts;
    int64_t row = first_ + at;
    while (row >= part->num_rows) row -= part++->num_rows;
    int64_t j = 0, count = num_rows_ - at < kPanel ? num_rows_ - at : kPanel;
    for (; j < count; part++, row = 0) {
      int64_t end = j + part->num_rows - row < count ? j + part->num_rows - row : count;
      bool is_native = part->type == T::kType;
      const Element *from = is_native ? static_cast<const Element *>(part->rows) + row * linear_->k : room(at + j);
      for (; j < end; j++, from += linear_->k) panel[j] = from;
    }
    for (; j < kPanel; j++) panel[j] = panel[j - 1];
  }

  /* Makes the first `count` ready, or all. */
  void prepare(int64_t count) {
    while (ready_ < count && ready_ < num_rows_) {
      Piece<T> piece = next(count - ready_);
      if (piece.type != T::kType) dequantise<T>(piece.type, piece.from, piece.rows * linear_->k, piece.to);
      pass(piece.rows);
    }
  }

  /* At most `count` of the rows that come next. Behind the task's last one come, once, those that follow it: if they
   * are of type T, or else if the worker will be the one that multiplies them. */
  Piece<T> next(int64_t count) const {
    int64_t rows = part_->num_rows - row_, left = num_rows_ - ready_;
    if (rows > count) rows = count;
    if (left > 0 && rows > left) rows = left;
    bool is_there = left > 0 || (left == 0 && (part_->type == T::kType || has_next_));
    if (!is_there || rows == 0) return {T::kType, nullptr, nullptr, 0};
    return {part_->type, row_at(*part_, row_, linear_->k), room(ready_), rows};
  }

  /* Says that a piece is ready. */
  void advance(const Piece<T> &piece) {
    if (ready_ == num_rows_ && piece.type != T::kType) pool_take_note(pool_, worker_, of_job_ + 1, piece.rows);
    pass(piece.rows);
  }

 private:
  /* Panels take turns. */
  Element *room(int64_t j) const {
    int64_t panel = (of_job_ * (kTaskRows / kPanel) + j / kPanel) % kExpandedPanels;
    return memory_ + (panel * kPanel + j % kPanel) * linear_->k;
  }

  void pass(int64_t rows) {
    ready_ += rows;
    row_ += rows;
    if (row_ == part_->num_rows && part_ + 1 < linear_->parts + linear_->num_parts) row_ = 0, part_++;
  }

  const vk_linear *linear_;
  vk_pool *pool_;
  int worker_;
  bool has_next_ = false;
  int64_t of_job_, first_, num_rows_, ready_ = 0;
  const vk_part *part_; /* where the first row that is not ready is, */
  int64_t row_;         /* and which of its rows it is */
  Element *memory_ = nullptr;
};

}  // namespace
#endif
