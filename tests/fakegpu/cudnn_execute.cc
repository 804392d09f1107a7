// cudnnBackendExecute: checks a plan and a variant pack against each other and puts the graph's
// work into the handle's stream.
//
// The pointers are read when the call is made, the data when the task runs. Each tensor is rounded
// to its own type when it is made, virtual ones too. The workspace is overwritten while the plan
// runs, as the engines do, so that anything else kept there is seen to be lost.
#include "tests/fakegpu/cudnn_math.h"

#include <cstdio>
#include <cstring>

namespace fakegpu::dnn
{

struct Work {
    Plan plan;
    Pack pack;
    std::map<int64_t, float> numbers; // by value, as they were when the call was made
};

static const char call[] = "cudnnBackendExecute";

static Rules rules_of(const Engine &e)
{
    return {e.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION),
            e.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS),
            e.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC),
            !e.has(CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP)};
}

static void check(const Work &w)
{
    char name[48];
    for (const Tensor &t : w.plan.graph->outside) {
        if (t.by_value) continue;
        snprintf(name, sizeof name, "tensor %lld", (long long)t.uid);
        need_device(call, name, w.pack.at.at(t.uid), t.extent());
    }
    if (w.plan.engine.workspace)
        need_device(call, "workspace", w.pack.workspace, (size_t)w.plan.engine.workspace);
}

static bool run(const Work &work)
{
    const Rules rules = rules_of(work.plan.engine);
    std::map<int64_t, std::vector<float>> values;
    check(work);
    if (work.plan.engine.workspace)
        memset(work.pack.workspace, 0xa5, (size_t)work.plan.engine.workspace);
    const auto value = [&](const Tensor &t) -> const std::vector<float> & {
        const auto at = values.find(t.uid);
        if (at != values.end()) return at->second;
        if (t.by_value) return values[t.uid] = {work.numbers.at(t.uid)};
        return values[t.uid] = load(t, work.pack.at.at(t.uid));
    };
    static const std::vector<float> none;
    for (const Op &op : work.plan.graph->ops) {
        const Tensor &out = op.out();
        std::vector<float> v;
        if (op.kind == Kind::pointwise) {
            v = pointwise(op, value(op.x), op.has_b ? value(op.w) : none,
                          op.has_t ? value(op.t) : none, rules);
        } else if (op.kind == Kind::matmul) {
            v = multiply(op, value(op.x), value(op.w));
            if (rules.jitter && !out.is_virtual && out.type == CUDNN_DATA_FLOAT) jitter(v);
        } else if (op.kind == Kind::reduction) {
            v = reduce(op, value(op.x));
        } else if (op.kind == Kind::reshape) {
            v = reshape(op, value(op.x));
        } else {
            v = convolve(op, op.kind == Kind::data ? none : value(op.x),
                         op.kind == Kind::filter ? none : value(op.w),
                         op.kind == Kind::forward ? none : value(op.y), rules);
            if (op.alpha != 1)
                for (float &f : v) f *= (float)op.alpha;
            if (op.beta != 0) {
                const std::vector<float> before = load(out, work.pack.at.at(out.uid));
                for (size_t i = 0; i < v.size(); i++) v[i] += (float)op.beta * before[i];
            }
        }
        if (out.type != CUDNN_DATA_FLOAT)
            for (float &f : v) f = rounded(f, out.type);
        if (!out.is_virtual) store(out, work.pack.at.at(out.uid), v);
        values[out.uid] = std::move(v);
    }
    return true;
}

// The output may share memory with an operand of a pointwise operation only where both are the same
// elements; with operands of the convolution not at all. What attention reads and writes may lie
// side by side, row by row: there only the same address is wrong.
static void check_overlap(const Work &w)
{
    for (const Op &op : w.plan.graph->ops) {
        const Tensor &o = op.out();
        if (o.is_virtual) continue;
        const char *a = static_cast<const char *>(w.pack.at.at(o.uid));
        for (const Tensor &t : w.plan.graph->outside) {
            const char *b = static_cast<const char *>(w.pack.at.at(t.uid));
            if (w.plan.graph->attention() && t.uid != o.uid && a == b)
                violation(call, "tensor %lld has the output's address", (long long)t.uid);
            if (w.plan.graph->attention()) continue;
            if (t.uid == o.uid || a + o.extent() <= b || b + t.extent() <= a) continue;
            const Op &first = w.plan.graph->ops[0];
            const bool of_first =
                first.kind != Kind::pointwise &&
                (t.uid == first.x.uid || t.uid == first.w.uid || t.uid == first.y.uid);
            if (of_first || a != b || t.type != o.type || memcmp(t.dim, o.dim, sizeof t.dim) ||
                memcmp(t.stride, o.stride, sizeof t.stride))
                violation(call, "tensor %lld overlaps the output", (long long)t.uid);
        }
    }
}

} // namespace fakegpu::dnn

using namespace fakegpu::dnn;
using fakegpu::fails;

extern "C" cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                             cudnnBackendDescriptor_t pack)
{
    DNN_CALL("cudnnBackendExecute");
    if (!handle || !plan || !pack)
        return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nullptr == handle, plan or pack");
    need_handle(call, handle);
    if (!alive(plan, "backend descriptor") || !alive(pack, "backend descriptor"))
        fakegpu::violation(call, "the plan or the pack is no descriptor (destroyed?)");
    const Descriptor *p = static_cast<Descriptor *>(plan), *v = static_cast<Descriptor *>(pack);
    if (p->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
        v->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return wrong(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "not a plan and a pack");
    if (!p->finalized || !v->finalized)
        return wrong(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the plan or the pack is not finalized");
    const auto work = std::make_shared<Work>(Work{*p->plan, *v->pack, {}});
    for (const Tensor &t : work->plan.graph->outside) {
        const auto at = work->pack.at.find(t.uid);
        if (at == work->pack.at.end() || !at->second)
            return wrong(CUDNN_STATUS_BAD_PARAM, "no pointer for tensor %lld", (long long)t.uid);
        if (t.by_value) {
            work->numbers[t.uid] = *static_cast<const float *>(at->second);
            continue;
        }
        char name[48];
        snprintf(name, sizeof name, "tensor %lld", (long long)t.uid);
        fakegpu::need_aligned(call, name, at->second, (size_t)t.alignment);
    }
    if (work->plan.engine.workspace && !work->pack.workspace)
        return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan needs a workspace");
    check(*work);
    check_overlap(*work);
    const fakegpu::Broken how = fakegpu::broken("cudnn", work->plan.engine.index);
    if (how == fakegpu::Broken::call)
        return wrong(CUDNN_STATUS_EXECUTION_FAILED, "engine %lld is broken (FAKEGPU_BROKEN)",
                     (long long)work->plan.engine.index);
    const auto step = [work, how] {
        if (how == fakegpu::Broken::slow) fakegpu::take_longer(fakegpu::SLOW_PIECES);
        if (how != fakegpu::Broken::context) return run(*work);
        fakegpu::spoil(cudaErrorIllegalAddress);
        return true;
    };
    return of_cuda(fakegpu::enqueue(handle->stream, {call, {}, step, {}}), call);
}
