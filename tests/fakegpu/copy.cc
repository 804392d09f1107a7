// Copies and fills, with what the runtime promises about them: which wait for the host's memory,
// which the host waits for, what a capture may hold. That both ends lie inside one allocation each
// is checked when the call is made and when it runs, that they do not overlap when it runs. Source:
// the CUDA runtime API's chapter on its synchronization behavior.
#include <cstring>

#include "tests/fakegpu/engine.h"

namespace fakegpu
{

namespace
{

struct Copy {
    const char *call;
    void *to;
    const void *from;
    size_t n;
};

void check_copy(const Copy &c)
{
    if (where(c.to) != Where::pageable) need_block(c.call, "the destination", c.to, c.n);
    if (where(c.from) != Where::pageable) need_block(c.call, "the source", c.from, c.n);
}

void do_copy(const Copy &c)
{
    check_copy(c);
    const auto *from = static_cast<const char *>(c.from);
    const auto *to = static_cast<const char *>(c.to);
    if (to < from + c.n && from < to + c.n) violation(c.call, "source and destination overlap");
    memcpy(c.to, c.from, c.n);
}

Task copy_task(const Copy &c)
{
    return Task{c.call, {}, [c] { return do_copy(c), true; }, {}};
}

Task staged_copy_task(const Copy &c)
{
    const auto *from = static_cast<const char *>(c.from);
    auto bytes = std::make_shared<std::vector<char>>(from, from + c.n);
    return Task{c.call,
                {},
                [c, bytes] {
                    do_copy(Copy{c.call, c.to, bytes->data(), c.n});
                    return true;
                },
                {}};
}

cudaError_t check_kind(const Copy &c, cudaMemcpyKind kind)
{
    const bool to = where(c.to) == Where::device, from = where(c.from) == Where::device;
    switch (kind) {
    case cudaMemcpyDefault:
        return cudaSuccess;
    case cudaMemcpyHostToHost:
        return !to && !from ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyHostToDevice:
        return to && !from ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToHost:
        return !to && from ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToDevice:
        return to && from ? cudaSuccess : cudaErrorInvalidValue;
    }
    return cudaErrorInvalidMemcpyDirection;
}

cudaError_t copy_async(const Copy &c, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (c.n == 0) return cudaSuccess;
    if (c.to == nullptr || c.from == nullptr) return cudaErrorInvalidValue;
    cudaError_t st = check_kind(c, kind);
    if (st != cudaSuccess) return st;
    check_copy(c);
    const Where to = where(c.to), from = where(c.from);
    if (to != Where::pageable && from != Where::pageable) return enqueue(stream, copy_task(c));
    st = check_stream(stream);
    if (st != cudaSuccess) return st;
    if (stream->capture)
        violation(
            c.call,
            "a copy of pageable host memory was captured: what will be there when it is replayed?");
    if (to == Where::device) return enqueue(stream, staged_copy_task(c));
    // To pageable memory, or between such: done when the call returns.
    st = enqueue(stream, copy_task(c));
    if (st == cudaSuccess) settle(stream);
    return st;
}

// In the default stream: behind the work of all streams that do not exclude it.
cudaError_t copy_sync(const Copy &c, cudaMemcpyKind kind)
{
    if (c.n == 0) return cudaSuccess;
    if (c.to == nullptr || c.from == nullptr) return cudaErrorInvalidValue;
    cudaError_t st = check_kind(c, kind);
    if (st != cudaSuccess) return st;
    st = forbid_in_capture();
    if (st != cudaSuccess) return st;
    check_copy(c);
    const Where to = where(c.to), from = where(c.from);
    CUstream_st *s = legacy_stream();
    // As documented: the host does not wait for copies within the device, and for those from
    // pageable memory only until that has been read. Other streams are not held up by either.
    const bool staged = to == Where::device && from == Where::pageable;
    const bool inside = to == Where::device && from == Where::device;
    if (staged) settle(s);
    st = enqueue_into(s, staged ? staged_copy_task(c) : copy_task(c));
    if (st == cudaSuccess && !staged && !inside) settle(s);
    return st;
}

Task set_task(const char *call, void *p, int value, size_t n)
{
    return Task{call,
                {},
                [=] {
                    need_device(call, "the destination", p, n);
                    memset(p, value, n);
                    return true;
                },
                {}};
}

} // namespace
} // namespace fakegpu

using namespace fakegpu;

extern "C" {

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    FAKEGPU_ENTER("cudaMemcpyAsync");
    return entry.done(copy_async(Copy{"cudaMemcpyAsync", to, from, n}, kind, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind)
{
    FAKEGPU_ENTER("cudaMemcpy");
    return entry.done(copy_sync(Copy{"cudaMemcpy", to, from, n}, kind));
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream)
{
    FAKEGPU_ENTER("cudaMemsetAsync");
    need_device("cudaMemsetAsync", "the destination", p, n);
    if (n == 0) return cudaSuccess;
    return entry.done(enqueue(stream, set_task("cudaMemsetAsync", p, value, n)));
}

cudaError_t cudaMemset(void *p, int value, size_t n)
{
    FAKEGPU_ENTER("cudaMemset");
    need_device("cudaMemset", "the destination", p, n);
    cudaError_t st = forbid_in_capture();
    if (st != cudaSuccess || n == 0) return entry.done(st);
    CUstream_st *s = legacy_stream(); // the host does not wait for it
    return entry.done(enqueue_into(s, set_task("cudaMemset", p, value, n)));
}

} // extern "C"
