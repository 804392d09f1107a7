// What NCCL's kernels do, plainly: every rank writes a chunk into its slot, counts it, waits for
// the others' counts, and takes what it needs, adding in rank order: the same bits everywhere. Two
// slots a rank are enough: a rank writes one again two chunks later, when it has seen everybody's
// chunk between, which they gave after they had read this one.
//
// With a chunk goes what operation it is of: ranks that differ in it are found here, where the real
// library would hang or mix up their data. A rank that never comes is waited for for ever, as
// there.
#include "tests/fakegpu/nccl.h"

#include <cstdlib>
#include <cstring>
#include <set>

using fakegpu::violation;

namespace fakenccl
{

bool Words::operator==(const Words &o) const
{
    return kind == o.kind && type == o.type && op == o.op && root == o.root &&
           captured == o.captured && place == o.place && places == o.places && count == o.count &&
           number == o.number && chunk == o.chunk && registered == o.registered && order == o.order;
}

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

namespace
{

std::string say(const Words &w)
{
    static const char *const kinds[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast"};
    char text[256];
    snprintf(
        text, sizeof text,
        "%s of %llu of type %d (op %d, root %d)%s, number %llu, %d of a group of %d, registered "
        "%d, group %llu of all communicators",
        kinds[(int)w.kind], (unsigned long long)w.count, w.type, w.op, w.root,
        w.captured ? ", recorded" : "", (unsigned long long)w.number, w.place + 1, w.places,
        w.registered, (unsigned long long)w.order);
    return text;
}

template <typename T> T join(ncclRedOp_t op, T a, T b)
{
    switch (op) {
    case ncclProd:
        return static_cast<T>(a * b);
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return static_cast<T>(a + b);
    }
}

// T: how it is stored; W: what it is added in.
template <typename T, typename W>
void reduce(const State &s, const Words &w, char *to, size_t n, size_t from)
{
    const auto op = (ncclRedOp_t)w.op;
    const int first = s.nvls ? (int)((s.seq * 0x9e3779b97f4a7c15u >> 32) % (uint64_t)s.nranks) : 0;
    for (size_t i = 0; i < n; i++) {
        W sum{};
        for (int k = 0; k < s.nranks; k++) {
            const int r = (first + k) % s.nranks;
            T stored;
            memcpy(&stored, s.slot(r, s.seq).bytes + (from + i) * sizeof(T), sizeof(T));
            const W v = static_cast<W>(stored);
            sum = k == 0 ? v : join<W>(op, sum, v);
        }
        if (op == ncclAvg) sum = sum / static_cast<W>(s.nranks);
        const T out = static_cast<T>(sum);
        memcpy(to + i * sizeof(T), &out, sizeof(T));
    }
}

void reduce_any(const State &s, const Words &w, char *to, size_t n, size_t from)
{
    switch ((ncclDataType_t)w.type) {
    case ncclInt8:
        return reduce<int8_t, int8_t>(s, w, to, n, from);
    case ncclUint8:
        return reduce<uint8_t, uint8_t>(s, w, to, n, from);
    case ncclInt32:
        return reduce<int32_t, int32_t>(s, w, to, n, from);
    case ncclUint32:
        return reduce<uint32_t, uint32_t>(s, w, to, n, from);
    case ncclInt64:
        return reduce<int64_t, int64_t>(s, w, to, n, from);
    case ncclUint64:
        return reduce<uint64_t, uint64_t>(s, w, to, n, from);
    case ncclFloat16:
        return reduce<__half, float>(s, w, to, n, from);
    case ncclBfloat16:
        return reduce<__nv_bfloat16, float>(s, w, to, n, from);
    case ncclFloat64:
        return reduce<double, double>(s, w, to, n, from);
    default:
        return reduce<float, float>(s, w, to, n, from);
    }
}

// Elements that a rank gives in all.
size_t given(const State &s, const Op &o)
{
    return o.words.kind == Kind::reduce_scatter ? o.words.count * (size_t)s.nranks : o.words.count;
}

// The chunk [at, at + n) of everybody, to where it belongs here.
void take(const State &s, const Op &o, size_t at, size_t n)
{
    const size_t size = size_of((ncclDataType_t)o.words.type), count = o.words.count;
    switch (o.words.kind) {
    case Kind::all_reduce:
        reduce_any(s, o.words, o.recv + at * size, n, 0);
        break;
    case Kind::all_gather:
        for (int r = 0; r < s.nranks; r++)
            memcpy(o.recv + ((size_t)r * count + at) * size, s.slot(r, s.seq).bytes, n * size);
        break;
    case Kind::reduce_scatter: {
        const size_t mine = (size_t)s.rank * count, from = at > mine ? at : mine;
        const size_t end = at + n < mine + count ? at + n : mine + count;
        if (from < end)
            reduce_any(s, o.words, o.recv + (from - mine) * size, end - from, from - at);
        break;
    }
    case Kind::broadcast:
        memcpy(o.recv + at * size, s.slot(o.words.root, s.seq).bytes, n * size);
        break;
    }
}

void give(State &s, const Op &o, size_t at, size_t n)
{
    const size_t size = size_of((ncclDataType_t)o.words.type);
    Slot &mine = s.slot(s.rank, s.seq);
    mine.words = o.words;
    mine.words.chunk = at;
    if (o.words.kind != Kind::broadcast || o.words.root == s.rank)
        memcpy(mine.bytes, o.send + at * size, n * size);
    s.file->members[s.rank].seq.store(s.seq + 1, std::memory_order_release);
}

// A kernel that was told to quit leaves anything.
void leave(const Launch &l)
{
    for (size_t i = l.op; i < l.ops.size(); i++)
        if (fakegpu::find_block(l.ops[i].recv) != nullptr)
            memset(l.ops[i].recv, 0xff, l.ops[i].recv_bytes);
}

// One chunk of the current operation.
bool move(Launch &l)
{
    State &s = *l.state;
    const Op &o = l.ops[l.op];
    const size_t room = CHUNK / size_of((ncclDataType_t)o.words.type),
                 left = given(s, o) - l.offset;
    const size_t n = left < room ? left : room;
    if (!l.given) {
        fakegpu::need_device(o.call, "sendbuff", o.send, o.send_bytes);
        fakegpu::need_device(o.call, "recvbuff", o.recv, o.recv_bytes);
        give(s, o, l.offset, n);
        l.given = true;
    }
    for (int r = 0; r < s.nranks; r++)
        if (s.file->members[r].seq.load(std::memory_order_acquire) <= s.seq) return false;
    for (int r = 0; r < s.nranks; r++) {
        const Words &theirs = s.slot(r, s.seq).words, &mine = s.slot(s.rank, s.seq).words;
        if (!(theirs == mine))
            violation(
                o.call,
                "rank %d is in an %s, rank %d in an %s: they would hang, or mix up their data",
                s.rank, say(mine).c_str(), r, say(theirs).c_str());
    }
    take(s, o, l.offset, n);
    s.seq++;
    l.given = false;
    l.offset += n;
    if (l.offset < given(s, o)) return true;
    l.offset = 0;
    l.op++;
    return true;
}

// Of this process, and so of its device.
std::set<const Launch *> running;
std::map<const State *, uint64_t> ended;

uint64_t ended_by_others(const State &s)
{
    uint64_t sum = 0;
    for (const auto &e : ended)
        if (e.first != &s) sum += e.second;
    return sum;
}

// Kernels of two communicators that wait for each other's ranks crosswise hang: NCCL must be told
// to keep their order, or streams must do it.
bool start(Launch &l)
{
    const State &s = *l.state;
    const auto before = l.before.lock();
    if (before != nullptr && before->started_ever <= l.started_ever) return false;
    for (const Launch *other : running)
        if (other->state != l.state && !ordered())
            violation(l.ops[0].call,
                      "operations of two communicators run at once: nothing orders them");
    const Kind kind = l.ops[0].words.kind;
    if (kind == Kind::all_reduce || kind == Kind::reduce_scatter)
        l.held = ++l.state->sums == s.hold_at;
    l.others = ended_by_others(s);
    l.started = true;
    l.started_ever++;
    running.insert(&l);
    return true;
}

} // namespace

bool ordered()
{
    static const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT"); // read once, as there
    return order != nullptr && strcmp(order, "1") == 0;
}

Launch::~Launch()
{
    running.erase(this);
}

void begin(Launch &l)
{
    State &s = *l.state;
    l.op = l.offset = 0;
    l.given = l.started = l.held = false;
    if (s.destroyed && !s.aborted)
        violation(l.ops[0].call, "runs, but its communicator was destroyed before");
    if (++s.begun == s.fail_at) s.failed = ncclRemoteError;
}

bool run(Launch &l)
{
    State &s = *l.state;
    if (s.current != nullptr && s.current != &l && !s.aborted)
        violation(l.ops[0].call,
                  "two operations of one communicator run at once: nothing orders them");
    s.current = &l;
    if (!l.started && !s.aborted && !start(l)) return false;
    while (!s.aborted && l.op < l.ops.size())
        if (s.failed != ncclSuccess || !move(l)) return false;
    if (!s.aborted && l.held && ended_by_others(s) == l.others) return false;
    if (s.aborted) leave(l);
    s.current = nullptr;
    running.erase(&l);
    ended[&s]++;
    s.done += l.captured ? 0 : 1;
    return true;
}

} // namespace fakenccl
