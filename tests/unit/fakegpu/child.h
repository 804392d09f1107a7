// What the tests of the stand-in share: violations end the process, so each case runs in a child of
// its own, whose exit status and messages are looked at; and a few kernels. The parent makes no
// CUDA call.
#pragma once

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "tests/fakegpu/device.h"
#include "tests/run.h"

struct Child {
    int status; // exit status; 1000 + signal
    std::string said;
};

using Environment = std::vector<std::pair<const char *, const char *>>;

static inline Child in_child(const Environment &env, const std::function<int()> &body)
{
    int ends[2];
    if (pipe(ends) != 0) abort();
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        setenv("FAKEGPU_PUMP", "0", 1); // nothing moves but what the test moves
        for (const auto &e : env) setenv(e.first, e.second, 1);
        exit(body());
    }
    close(ends[1]);
    Child c{};
    char buf[512];
    for (ssize_t n; (n = read(ends[0], buf, sizeof buf)) > 0;) c.said.append(buf, (size_t)n);
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    c.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return c;
}

static inline void ends_well(const Environment &env, const std::function<int()> &body)
{
    const Child c = in_child(env, body);
    if (c.status != 0) print_error("%s\n", c.said.c_str());
    assert_int_equal(c.status, 0);
}

// The process ends with a violation that says all of `words`.
static inline void is_violation(const Environment &env, const std::vector<const char *> &words,
                                const std::function<int()> &body)
{
    const Child c = in_child(env, body);
    for (const char *word : words)
        if (c.said.find(word) == std::string::npos) {
            print_error("\"%s\" is not in: %s\n", word, c.said.c_str());
            fail();
        }
    if (c.status != 99) print_error("%s\n", c.said.c_str());
    assert_int_equal(c.status, 99);
}

// In the child: the line that failed becomes its message, the status 1.
#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call)              NEED((call) == cudaSuccess)
#define GIVES(expected, call) NEED((call) == (expected))

#define LAUNCH(kernel, grid, block, shared, stream, ...)                                           \
    ::fakegpu::launch(#kernel, kernel, dim3(grid), dim3(block), (shared), (stream), __VA_ARGS__)

static inline cudaStream_t new_stream()
{
    cudaStream_t s = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    return s;
}

static inline cudaEvent_t new_event()
{
    cudaEvent_t e = nullptr;
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    return e;
}

template <typename T> static inline T *new_device(size_t n)
{
    void *p = nullptr;
    cudaMalloc(&p, n * sizeof(T));
    return static_cast<T *>(p);
}

template <typename T> static inline T *new_pinned(size_t n)
{
    void *p = nullptr;
    cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocDefault);
    return static_cast<T *>(p);
}

// One int, through pageable memory: waits for the stream.
static inline int fetch(const int *p, cudaStream_t s)
{
    int v = -12345;
    if (cudaMemcpyAsync(&v, p, sizeof v, cudaMemcpyDeviceToHost, s) != cudaSuccess) return -54321;
    return v;
}

// Also told to write where nothing is: the stand-in is to find it, not the sanitizer.
[[maybe_unused, gnu::no_sanitize("null")]] static __global__ void set_kernel(int *p, int v)
{
    *p = v;
}
[[maybe_unused]] static __global__ void add_kernel(int *to, const int *a, int v)
{
    *to = *a + v;
}
