#!/bin/sh
# gpu_faults.sh MPIEXEC PROGRAM: calls of CUDA and NCCL fail on one rank of the stand-in, in set-up, in a
# step as it comes, while it is recorded and when it is replayed; the job must end by itself, and soon, and
# every rank must have heard of the call that failed.
set -u
mpiexec=$1 program=$2 bad=0 ranks=3
try() { # what is said by all, mode, VARIABLE=value
    start=$(date +%s)
    out=$(env "$3" timeout 40 "$mpiexec" --oversubscribe -np $ranks "$program" fault "$2" 2>&1)
    status=$?
    took=$(($(date +%s) - start))
    heard=$(echo "$out" | grep -c "^rank . failed: .*$1")
    verdict=ok
    [ $took -gt 15 ] && verdict="did not end in time"
    [ $status -eq 0 ] && verdict="ended as if all were well"
    [ $status -eq 99 ] && verdict="broke a rule of the stand-in"
    [ "$heard" -eq $ranks ] || verdict="$heard of $ranks ranks heard of it"
    echo "$2, $3: status $status, $took s: $verdict"
    [ "$verdict" = ok ] || { bad=1; echo "$out"; }
}
try ncclGetVersion nccl FAKEGPU_FAIL=ncclGetVersion:1@2
try ncclGetUniqueId nccl FAKEGPU_FAIL=ncclGetUniqueId:1@0
try ncclCommInitRankConfig nccl FAKEGPU_FAIL=ncclCommInitRankConfig:1@1
for call in ncclAllReduce:1@1 ncclAllReduce:9@0 ncclAllGather:2@2 ncclGroupStart:3@0 ncclGroupEnd:2@1 \
    ncclGroupEnd:10@2 ncclCommGetAsyncError:20@1 cudaEventRecord:7@0 cudaStreamWaitEvent:9@1; do
    try "${call%:*}" nccl "FAKEGPU_FAIL=$call"
done
for n in 1 7 15 30; do
    try "remote process exited" nccl "FAKENCCL_ASYNC_ERROR=$n@1"
done
for call in cudaEventQuery:2@1 cudaEventRecord:5@0 cudaStreamWaitEvent:1@2; do
    try "${call%:*}" mpi "FAKEGPU_FAIL=$call"
done
exit $bad
